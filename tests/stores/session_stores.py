"""The session stores on which the promises of sessions are shown, and how to look into each without the broker."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer

from embermq.model.redis_layout import client_keys


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


class RedisStore:
    """A Redis or a Redis Cluster."""

    def __init__(self, url: str, node_of: Callable[[str], RedisServer]) -> None:
        self.settings: Mapping[str, object] = {"stores.session": url}
        self._node_of = node_of

    def deadline_ms(self, data_dir: Path, client_id: str, packet_id: int) -> int:
        key = f"{client_keys(client_id).message}{packet_id}"
        return int(self._node_of(key).ask("PEXPIRETIME", key))


def _sqlite(request: pytest.FixtureRequest) -> SessionStore:
    return SqliteStore()


def _redis(request: pytest.FixtureRequest) -> SessionStore:
    server: RedisServer = request.getfixturevalue("redis_server")
    return RedisStore(server.url, lambda key: server)


def _redis_cluster(request: pytest.FixtureRequest) -> SessionStore:
    cluster: RedisCluster = request.getfixturevalue("redis_cluster")
    return RedisStore(cluster.url, cluster.master_of)


SESSION_STORES: Mapping[str, Callable[[pytest.FixtureRequest], SessionStore]] = {
    "sqlite": _sqlite,
    "redis": _redis,
    "redis_cluster": _redis_cluster,
}
"""By name; each is made for one test, which may ask for the fixture of a server."""
