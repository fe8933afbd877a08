"""The message log of the embedded profile: segment files, with broker.db as their checkpoint."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from embermq.adapters.segments.message_log import SegmentMessageLog
from embermq.adapters.segments.tick_store import SegmentTickStore
from embermq.adapters.segments.writer import SEGMENT_BYTES
from embermq.adapters.sqlite import connection as sqlite
from embermq.adapters.sqlite.application_log import SqliteApplicationLog
from embermq.adapters.sqlite.checkpoint import SqliteCheckpoint
from embermq.adapters.sqlite.log_readers import SqliteLogReaders
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.app.config import Settings
from embermq.app.log_side import LogSide, Post, RetainedLog
from embermq.app.message_archive import confirmed_offset
from embermq.formats.segments import FOLDER
from embermq.pipeline.log_look import LogLook
from embermq.ports.message_log import MessageLog
from embermq.ports.sessions import StoredState
from embermq.sessions.session import Session

LOG = logging.getLogger("embermq")

SEGMENTS_KEPT_MIN = 8
"""In about so many files or more the log is kept."""
SEGMENT_BYTES_MIN = 256 * 1024
MEANING = {
    "fsync": "fsync: an acknowledged message is on disk",
    "os": "os: an acknowledged message survives the broker, not a power loss",
    "memory": "memory: an acknowledged message may be lost",
}


class SegmentLog(LogSide):
    """In segment files, with broker.db as their checkpoint."""

    has_dates = False

    def __init__(
        self, settings: Settings, data_dir: Path, tables: TickTables, store: SegmentTickStore
    ) -> None:
        self._settings = settings
        self._path = data_dir / "broker.db"
        self._tables = tables
        self._store = self.ticks = store
        self.log = SegmentMessageLog(store)
        self.meaning = MEANING[settings.log.durability]
        self.is_shared_by_threads = settings.log.durability != "memory"
        self.on_end = store.on_end

    def begin(self, stored: StoredState) -> StoredState:
        """All that is stored is read: numbers go on behind `log_end`. Returns it with the number that comes next."""
        confirmed = confirmed_offset(self._settings, sqlite.log_identity(self._tables.connection))
        self._store.begin_at(max(confirmed, stored.log_end))
        return replace(stored, log_end=self._store.log_end)

    @property
    def dispatcher_floor(self) -> int:
        return self._store.dispatcher_floor

    @property
    def failing(self) -> str:
        return ""  # a tick is answered, with an error or without

    def open_for_retention(self) -> RetainedLog:
        connection = sqlite.open_reader(self._path)
        applications = SqliteApplicationLog(connection, self._path.with_name("applications.db"))

        log = SegmentMessageLog(self._store, own_thread=True)

        def close() -> None:
            log.close()
            applications.close()
            connection.close()

        return RetainedLog(log, SqliteLogReaders(self._path.parent), applications, close)

    def open_reader(self) -> tuple[MessageLog, Callable[[], None]]:
        if not self.is_shared_by_threads:
            return self.log, lambda: None
        log = SegmentMessageLog(self._store, own_thread=True)
        return log, log.close

    def look(self, queries: Iterable[str]) -> LogLook | None:
        return None

    def holding(self, sessions: Iterable[Session]) -> tuple[str, ...]:
        pipeline = self._settings.pipeline
        return pipeline.queries if pipeline.enabled else ()

    def close(self) -> None:
        self._store.close()


def open_segment_log(
    settings: Settings, data_dir: Path, tables: TickTables, post: Post, *, accept_loss: bool = False
) -> SegmentLog:
    """`accept_loss`: go on without what is damaged or missing. Raises StoreError."""
    store = SegmentTickStore(
        data_dir / FOLDER,
        SqliteCheckpoint(tables, data_dir / "broker.db"),
        durability=settings.log.durability,
        post=post,
        now_ms=tables.now_ms,
        accept_loss=accept_loss,
        segment_bytes=_segment_bytes(settings.log.retention_bytes),
        loop=_running_loop(),
    )
    for lost in store.lost:
        LOG.error("lost, and accepted: %s", lost)
    return SegmentLog(settings, data_dir, tables, store)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """None for a tool that has no event loop."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _segment_bytes(retention_bytes: int) -> int:
    """Retention removes whole files, so a small log has small ones."""
    return min(SEGMENT_BYTES, max(SEGMENT_BYTES_MIN, retention_bytes // SEGMENTS_KEPT_MIN))
