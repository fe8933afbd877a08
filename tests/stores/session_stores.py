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
from tests.support.servers import on_servers
from tests.support.waiting import wait_until

from embermq.formats.redis_layout import client_keys


class SessionStore(Protocol):
    """Where a broker keeps session data."""

    @property
    def settings(self) -> Mapping[str, object]:
        """`--set` assignments of a broker that uses it."""

    def copy(self, data_dir: Path) -> Copy:
        """Of a broker that is at rest."""

    @property
    def removes_by_itself(self) -> bool:
        """Whether the store removes what has a deadline, without the broker."""

    def deadline_ms(self, data_dir: Path, client_id: str, packet_id: int) -> int:
        """When what is in flight to a client under that id ceases to be kept, ms since 1970; -1 for never."""


class Copy(Protocol):
    """Session data as it was at one moment, without the log."""

    def put_back(self) -> None:
        """It is the session data from now on; the broker is not running."""


SHOWN_S = 30.0


class SqliteStore:
    """The embedded one: `broker.db` itself."""

    removes_by_itself = False
    settings: Mapping[str, object] = {}

    def copy(self, data_dir: Path) -> Copy:
        raise NotImplementedError

    def deadline_ms(self, data_dir: Path, client_id: str, packet_id: int) -> int:
        rows: list[tuple[object]] = []

        def is_there() -> bool:
            with closing(sqlite3.connect(f"file:{data_dir / 'broker.db'}?mode=ro", uri=True)) as connection:
                rows[:] = connection.execute(
                    "SELECT device_queue.expires_ms FROM device_queue JOIN session USING (generation) "
                    "WHERE client_id = ? AND packet_id = ? AND state IN (1, 2)",
                    (client_id, packet_id),
                ).fetchall()
            return bool(rows)

        wait_until(is_there, SHOWN_S, "the checkpoint has the delivery")
        ((expires_ms,),) = rows
        assert isinstance(expires_ms, int)
        return expires_ms


SETTLE_S = 0.5
"""Shorter than the default, so that a broker comes to rest before those who look at it lose patience; what is kept for
that long is shown in tests/faults."""


class RedisStore:
    """A Redis or a Redis Cluster, beside a log in Kafka."""

    removes_by_itself = True

    def __init__(
        self,
        places: Mapping[str, object],
        node_of: Callable[[str], RedisServer],
        masters: Callable[[], list[RedisServer]],
    ) -> None:
        self.settings: Mapping[str, object] = {**places, "redis.settle_s": SETTLE_S}
        self._node_of = node_of
        self._masters = masters

    def copy(self, data_dir: Path) -> Copy:
        return RedisCopy(self._masters())

    def deadline_ms(self, data_dir: Path, client_id: str, packet_id: int) -> int:
        key = f"{client_keys(client_id, '').message}{packet_id}"
        return int(self._node_of(key).ask("PEXPIRETIME", key))


class RedisCopy:
    """Every key of every master, as DUMP has it; what has a deadline keeps it."""

    def __init__(self, masters: list[RedisServer]) -> None:
        self._keys = [
            (master, key, master.ask("PEXPIRETIME", key), master.ask("DUMP", key))
            for master in masters
            for key in master.ask("KEYS", "*")
        ]
        self._masters = masters

    def put_back(self) -> None:
        for master in self._masters:
            master.ask("FLUSHALL")
        for master, key, deadline_ms, value in self._keys:
            master.ask("RESTORE", key, max(deadline_ms, 0), value, "ABSTTL")


def _sqlite(request: pytest.FixtureRequest) -> SessionStore:
    return SqliteStore()


def _redis(request: pytest.FixtureRequest) -> SessionStore:
    server: RedisServer = request.getfixturevalue("redis_server")
    places = on_servers(request.getfixturevalue("kafka"), server)
    return RedisStore(places, lambda key: server, lambda: [server])


def _redis_cluster(request: pytest.FixtureRequest) -> SessionStore:
    cluster: RedisCluster = request.getfixturevalue("redis_cluster")
    places = on_servers(request.getfixturevalue("kafka"), cluster)
    return RedisStore(places, cluster.master_of, cluster.masters)


SESSION_STORES: Mapping[str, Callable[[pytest.FixtureRequest], SessionStore]] = {
    "sqlite": _sqlite,
    "redis": _redis,
    "redis_cluster": _redis_cluster,
}
"""By name; each is made for one test, which may ask for the fixture of a server."""
