"""Opening the store of session data that the settings name."""

from __future__ import annotations

import logging
import sqlite3
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from embermq.adapters.sqlite.device_queue import SqliteDeviceQueue, SqliteQueueHistory
from embermq.adapters.sqlite.log_state import Post
from embermq.adapters.sqlite.sessions import SqliteSessionStore
from embermq.app.config import Settings
from embermq.app.errors import StartError
from embermq.app.settings import ELSEWHERE, SQLITE
from embermq.durability.split.completion import behind_log
from embermq.model.session import RetainedRow
from embermq.ports.device_queue import DeviceQueue, DeviceQueueHistory
from embermq.ports.sessions import SessionStore, StoredState

if TYPE_CHECKING:
    from embermq.app.redis_sessions import RedisSessions

LOG = logging.getLogger("embermq")
DRIVERS = frozenset({"redis", "hiredis"})


class SessionSide(Struct):
    """Where session data is read; `apart` is the store of its own that it is written to, None beside the log."""

    sessions: SessionStore
    queue: DeviceQueue
    history: DeviceQueueHistory
    apart: RedisSessions | None = None

    def load(self, beside_log: StoredState) -> tuple[StoredState, list[RetainedRow]]:
        """All that is stored; `beside_log` is what broker.db holds. `log_end` is the highest that either knows: the
        log may have lost its end, by a power loss or an older backup, and no position may be used twice. Raises
        StoreError."""
        if self.apart is None:
            return beside_log, self.sessions.load_retained()
        if beside_log.sessions:
            LOG.warning(
                "broker.db holds %d sessions from when they were kept there; %s does not have them, and they are not "
                "used",
                len(beside_log.sessions),
                self.apart.place,
            )
        stored, retained = self.sessions.load(), self.sessions.load_retained()
        known_end = max(stored.log_end, *(row.offset + 1 for row in retained), beside_log.log_end)
        if known_end > beside_log.log_end:
            LOG.warning(
                "the log ends at offset %d, %s knows of %d: what lies between is lost, the log goes on from there",
                beside_log.log_end,
                self.apart.place,
                known_end,
            )
        return replace(behind_log(stored, beside_log), log_end=known_end), retained


def open_session_store(
    settings: Settings, reader: sqlite3.Connection, post: Post, log_id: int, before: str
) -> SessionSide:
    """The tables of broker.db, which `reader` sees, or a Redis, which has to belong to this log. `before` is where the
    run before kept session data, "" for broker.db: what comes while its sessions are not there would be lost to them.
    Raises StartError, StoreError."""
    if settings.stores.session == SQLITE:
        if before and not settings.stores.discard_sessions:
            raise StartError(f"stores.session: {ELSEWHERE.format(before)}")
        return SessionSide(SqliteSessionStore(reader), SqliteDeviceQueue(reader), SqliteQueueHistory(reader))
    try:
        from embermq.app.redis_sessions import RedisSessions
    except ModuleNotFoundError as error:
        if error.name not in DRIVERS:
            raise
        raise StartError(
            f"stores.session: {settings.stores.shown().session} needs the package {error.name}: "
            "pip install 'embermq[servers]', or make servers"
        ) from None
    apart = RedisSessions(settings.stores.session, settings.redis, post)
    try:
        apart.claim(log_id, before=before, may_be_empty=settings.stores.discard_sessions)
    except BaseException:
        apart.abandon()
        raise
    return SessionSide(apart.sessions, apart.queue, apart.history, apart)
