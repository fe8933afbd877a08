"""The same stores on the Redis of the simulation, which is to answer as a real one does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.contracts.servers_stores import ServersStores
from tests.contracts.session_stores import InRedis
from tests.simulation.redis_server import URL, DirectRedis, SimulatedRedis

from embermq.adapters.redis.blocking import BlockingRedis


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class InSimulatedRedis(InRedis):
    """Session data in it."""

    def __init__(self, server: SimulatedRedis | None = None) -> None:
        self.server = server or SimulatedRedis(_wall_ms)
        super().__init__(URL)

    def another(self) -> InRedis:
        return InSimulatedRedis(self.server)

    def _connect(self) -> BlockingRedis:
        return DirectRedis(self.server)


class SimulatedServersStores(ServersStores):
    """All but the log in it."""

    def __init__(self, folder: Path) -> None:
        self.server = SimulatedRedis(_wall_ms)
        super().__init__(URL, folder)

    def _connect(self) -> BlockingRedis:
        return DirectRedis(self.server)


def open_servers(request: pytest.FixtureRequest, folder: Path) -> ServersStores:
    """On a real Redis, or on the simulated one, as the fixture's parameter says."""
    if request.param == "simulated":
        return SimulatedServersStores(folder)
    return ServersStores(request.getfixturevalue("redis_server").url, folder)
