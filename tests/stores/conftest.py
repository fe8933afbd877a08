"""Each test once on every session store, with a broker of its own that it may kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import quiet
from tests.stores.session_stores import SESSION_STORES, SessionStore
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import Talk, talk


@pytest.fixture(params=["redis", pytest.param("redis_cluster", marks=pytest.mark.in_faults), "sqlite"])
def session_store(request: pytest.FixtureRequest) -> SessionStore:
    """One after the other. What a cluster stores is shown by the contracts, and by `make faults` over sockets."""
    return SESSION_STORES[request.param](request)


@pytest.fixture
def broker(session_store: SessionStore, tmp_path: Path) -> Iterator[BrokerProcess]:
    """Not started: set it up first. It must be silent."""
    found = BrokerProcess(tmp_path / "data", settings=session_store.settings)
    try:
        yield found
        quiet(found)
    finally:
        found.close()


def talk_until_killed(broker: BrokerProcess, dialogue: Talk) -> None:
    """kill -9 at the end of the dialogue, while its clients are still connected; and up again."""

    async def whole() -> None:
        await dialogue()
        broker.kill()

    talk(whole)
    broker.start()
