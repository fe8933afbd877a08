"""The session stores on which the promises of sessions are shown, and how to look into each without the broker."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest


class SessionStore(Protocol):
    """Where a broker keeps session data."""

    @property
    def settings(self) -> Mapping[str, object]:
        """`--set` assignments of a broker that uses it."""

    def deadline_ms(self, data_dir: Path, client_id: str, packet_id: int) -> int:
        """When what is in flight to a client under that id ceases to be kept, ms since 1970."""


class SqliteStore:
    """The embedded one: `broker.db` itself."""

    settings: Mapping[str, object] = {}

    def deadline_ms(self, data_dir: Path, client_id: str, packet_id: int) -> int:
        with closing(sqlite3.connect(f"file:{data_dir / 'broker.db'}?mode=ro", uri=True)) as connection:
            rows = connection.execute(
                "SELECT device_queue.expires_ms FROM device_queue JOIN session USING (generation) "
                "WHERE client_id = ? AND packet_id = ? AND state IN (1, 2)",
                (client_id, packet_id),
            ).fetchall()
        ((expires_ms,),) = rows
        assert isinstance(expires_ms, int)
        return expires_ms


def _sqlite(request: pytest.FixtureRequest) -> SessionStore:
    return SqliteStore()


SESSION_STORES: Mapping[str, Callable[[pytest.FixtureRequest], SessionStore]] = {"sqlite": _sqlite}
"""By name; each is made for one test, which may ask for the fixture of a server."""
