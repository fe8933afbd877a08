"""The stores that each contract suite runs on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.kafka_stores import KafkaStores
from tests.contracts.servers_stores import ServersStores
from tests.contracts.session_stores import InRedis, InSqlite, SessionStores
from tests.contracts.simulated_stores import InSimulatedRedis, SimulatedServersStores
from tests.contracts.stores import KINDS, Stores
from tests.support.redis_cluster import RedisCluster

from embermq.adapters.redis.address import with_slot

OS = pytest.param("os", marks=pytest.mark.in_faults)
"""Differs from `fsync` in one system call, of which `tests/faults` says what it is worth."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Suites that say `ON_SERVERS` run on the stores of the servers profile, too; with `ON_CLUSTER` also where these
    have a Redis Cluster."""
    own = hasattr(metafunc.module, "stores") or any(
        "stores" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")
    )
    if "stores" in metafunc.fixturenames and not own:
        servers = ["servers", "simulated"] if getattr(metafunc.module, "ON_SERVERS", False) else []
        servers += ["servers_cluster"] if getattr(metafunc.module, "ON_CLUSTER", False) else []
        metafunc.parametrize("stores", [*map(_marked, KINDS), *servers], indirect=True)


def _marked(kind: str) -> object:
    return OS if kind == "os" else kind


@pytest.fixture
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """Every adapter, at every level of durability."""
    opened = _open_stores(request.param, request, tmp_path)
    yield opened
    opened.close()


def _open_stores(kind: str, request: pytest.FixtureRequest, folder: Path) -> Stores:
    if kind == "servers":
        return ServersStores(request.getfixturevalue("redis_server").url, folder)
    if kind == "simulated":
        return SimulatedServersStores(folder)
    if kind == "servers_cluster":
        return ServersStores(of_slot(request.getfixturevalue("redis_cluster")), folder)
    if kind == "kafka":
        redis = request.getfixturevalue("redis_server")
        return KafkaStores(request.getfixturevalue("kafka"), redis.url, folder)
    return Stores(kind, folder)  # type: ignore[arg-type]  # one of KINDS


@pytest.fixture(params=["fsync", OS, "memory"])
def sqlite_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """The SQLite adapters alone, for what only a disk can do."""
    opened = Stores(request.param, tmp_path)
    yield opened
    opened.close()


@pytest.fixture(params=["sqlite", "redis", "redis_cluster", "simulated"])
def session_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionStores]:
    """Every place for session data, on its real server."""
    opened = _open_session_stores(request.param, request, tmp_path)
    yield opened
    opened.close()


@pytest.fixture(params=["redis", "redis_cluster", "simulated"])
def redis_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InRedis]:
    """Those whose keys are a matter of their own."""
    opened = _open_session_stores(request.param, request, tmp_path)
    assert isinstance(opened, InRedis)
    yield opened
    opened.close()


def _open_session_stores(kind: str, request: pytest.FixtureRequest, folder: Path) -> SessionStores:
    if kind == "sqlite":
        return InSqlite(folder)
    if kind == "simulated":
        return InSimulatedRedis()
    if kind == "redis":
        return InRedis(request.getfixturevalue("redis_server").url)
    return InRedis(of_slot(request.getfixturevalue("redis_cluster")))


def of_slot(cluster: RedisCluster) -> str:
    """Where a slot of our cluster keeps its data that is not the first one: its keys have a prefix."""
    return with_slot(cluster.url, 1)
