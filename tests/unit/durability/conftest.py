"""A broker whose session data is in a store of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.hand_driven import HandDrivenBroker
from tests.support.held_sessions import HeldSessions

MIB = 1024 * 1024


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[HeldSessions]:
    store = HeldSessions(tmp_path / "sessions.db")
    yield store
    store.close()


@pytest.fixture
def hand(sessions: HeldSessions) -> HandDrivenBroker:
    return HandDrivenBroker(sessions=sessions, waiting_bytes_max=MIB)
