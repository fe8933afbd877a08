"""Opening the store of session data that the settings name."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from msgspec import Struct

from embermq.adapters.sqlite.device_queue import SqliteDeviceQueue, SqliteQueueHistory
from embermq.adapters.sqlite.sessions import SqliteSessionStore
from embermq.adapters.sqlite.tick_store import Post
from embermq.app.config import Settings
from embermq.app.errors import StartError
from embermq.app.settings import SQLITE
from embermq.ports.device_queue import DeviceQueue, DeviceQueueHistory
from embermq.ports.sessions import SessionStore

if TYPE_CHECKING:
    from embermq.app.redis_sessions import RedisSessions

DRIVERS = frozenset({"redis", "hiredis"})


class SessionSide(Struct):
    """Where session data is read; `apart` is the store of its own that it is written to, None beside the log."""

    sessions: SessionStore
    queue: DeviceQueue
    history: DeviceQueueHistory
    apart: RedisSessions | None = None


def open_session_store(
    settings: Settings, reader: sqlite3.Connection, post: Post, log_id: int
) -> SessionSide:
    """The tables of broker.db, which `reader` sees, or a Redis, which has to belong to this log. Raises StartError,
    StoreError."""
    if settings.stores.session == SQLITE:
        return SessionSide(SqliteSessionStore(reader), SqliteDeviceQueue(reader), SqliteQueueHistory(reader))
    try:
        from embermq.app.redis_sessions import RedisSessions
    except ModuleNotFoundError as error:
        if error.name not in DRIVERS:
            raise
        raise StartError(
            f"stores.session: {settings.stores.shown().session} needs the package {error.name}: "
            "pip install 'embermq[cluster]', or make cluster"
        ) from None
    apart = RedisSessions(settings.stores.session, settings.redis, post)
    try:
        apart.claim(log_id)
    except BaseException:
        apart.abandon()
        raise
    return SessionSide(apart.sessions, apart.queue, apart.history, apart)
