"""The message store on a server, and archive.db, which says here what the server has confirmed.

The position is the server's: it moves in the transaction of the rows, and a query starts from it. archive.db is written
after that transaction, so that it is never ahead; the broker's retention and status go by it, and need no server.
"""

import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import Struct

from embermq.model.message_table import ARCHIVE, COLUMNS, SERVER_MESSAGES, SERVER_PROGRESS, topic_hash
from embermq.pipeline.errors import ForeignStoreError
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.sinks.message_file import rows_of
from embermq.pipeline.sinks.message_store import MessageStoreSink, batch_from
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.pipeline.sinks.sql_server import SqlServer
from embermq.pipeline.sources.log_file import LogFile

_ROWS_AT_A_TIME = 5_000
_TOPIC = COLUMNS.index("topic")
_TOPICS_REMEMBERED = 10_000

_POSITION = (
    f"SELECT log_id, next_offset, records, entries, rejected FROM {SERVER_PROGRESS}"
    ' WHERE reader = %s AND "partition" = %s FOR UPDATE'
)
_BEGIN = (
    f'INSERT INTO {SERVER_PROGRESS} (reader, "partition", log_id, next_offset, records, entries, rejected,'
    " updated_ms) VALUES (%s, %s, %s, %s, 0, 0, 0, %s)"
)
_MOVE = (
    f"UPDATE {SERVER_PROGRESS} SET next_offset = %s, records = %s, entries = %s, rejected = %s, updated_ms = %s"
    ' WHERE reader = %s AND "partition" = %s'
)
_OLDEST = (
    f'SELECT MAX("offset") FROM (SELECT "offset" FROM {SERVER_MESSAGES} WHERE "partition" = %s'
    ' ORDER BY "offset" LIMIT %s) AS oldest'
)
_PRUNE = f'DELETE FROM {SERVER_MESSAGES} WHERE "partition" = %s AND "offset" <= %s AND accepted_ms < %s'

_hash = lru_cache(_TOPICS_REMEMBERED)(topic_hash)


class _Kept(Struct, frozen=True):
    """The row of message_progress."""

    log_id: int
    next_offset: int
    records: int
    entries: int
    rejected: int

    def totals(self) -> dict[str, int]:
        return {"records": self.records, "entries": self.entries, "rejected": self.rejected}


class MessageServer(MessageStoreSink):
    """Raises MessageServerError while the server does not answer; the next call tries again."""

    def __init__(self, server: SqlServer, copy: Path, log: Path) -> None:
        """`copy` is archive.db, `log` broker.db: one store belongs to one message log."""
        self.file = SinkFile(copy, ARCHIVE)
        self._server = server
        self._log = log

    def open(self) -> None:
        with self._server.transaction() as cursor:
            kept = self._kept(cursor)
        self.file.copy(kept.next_offset if kept else None, kept.totals() if kept else {})

    def begin_at(self, offset: int) -> None:
        with self._server.transaction() as cursor:
            if self._kept(cursor) is None:
                cursor.execute(_BEGIN, (ARCHIVE, PARTITION, self._log_id(), offset, _now_ms()))
        self.open()

    def write_table(self, table: pa.Table) -> int:
        with self._server.transaction() as cursor:
            kept = self._kept(cursor)
            done = kept.next_offset if kept else 0
            batch = batch_from(table, done)
            if batch is None:
                return 0
            if kept is None:
                cursor.execute(_BEGIN, (ARCHIVE, PARTITION, self._log_id(), batch.begin, _now_ms()))
                kept = _Kept(self._log_id(), batch.begin, 0, 0, 0)
            self._server.put(cursor, _with_hash(batch.messages))
            kept = _Kept(
                kept.log_id,
                batch.end,
                kept.records + batch.end - batch.begin,
                kept.entries + len(batch.messages),
                kept.rejected + batch.rejected,
            )
            cursor.execute(
                _MOVE,
                (
                    kept.next_offset,
                    kept.records,
                    kept.entries,
                    kept.rejected,
                    _now_ms(),
                    ARCHIVE,
                    PARTITION,
                ),
            )
        self.file.copy(kept.next_offset, kept.totals())
        return batch.end - batch.begin

    def prune(self, older_than_ms: int, rows_max: int) -> int:
        with self._server.transaction() as cursor:
            cursor.execute(_OLDEST, (PARTITION, rows_max))
            (last,) = cursor.fetchone()
            if last is None:
                return 0
            cursor.execute(_PRUNE, (PARTITION, last, older_than_ms))
            return int(cursor.rowcount)

    def close(self) -> None:
        self._server.close()
        super().close()

    def _kept(self, cursor: Any) -> _Kept | None:
        """The store's position, locked until the transaction ends; None before its first."""
        cursor.execute(_POSITION, (ARCHIVE, PARTITION))
        row = cursor.fetchone()
        if row is None:
            return None
        kept = _Kept(*map(int, row))
        if kept.log_id != self._log_id():
            raise ForeignStoreError(
                f"{self._server.place} holds the messages of another broker (log {kept.log_id}, this one is"
                f" {self._log_id()}): give each broker a database of its own"
            )
        return kept

    def _log_id(self) -> int:
        log = LogFile(self._log)
        try:
            return log.identity()
        finally:
            log.close()


def _with_hash(messages: pa.Table) -> Iterator[tuple[Any, ...]]:
    for row in rows_of(messages, _ROWS_AT_A_TIME):
        yield (*row, _hash(row[_TOPIC]))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
