"""The message store on a server, and archive.db, which says here what the server has confirmed.

The position is the server's: it moves in the transaction of the rows, and a query starts from it. archive.db is written
after that transaction, so that it is never ahead; the broker's retention and status go by it, and need no server.
"""

import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import Struct

from embermq.formats.message_table import ARCHIVE, COLUMNS, SERVER_MESSAGES, SERVER_PROGRESS, topic_hash
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.sinks.message_file import MessageBatch, MessageStoreSink, batch_from, rows_of
from embermq.pipeline.sinks.message_tasks import OpenWriter
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.pipeline.sinks.sql_server import SqlServer

_ROWS_AT_A_TIME = 5_000
_TOPIC = COLUMNS.index("topic")
_TOPICS_REMEMBERED = 10_000

_OF = 'log_id = %s AND "partition" = %s'
_POSITION = (
    f"SELECT next_offset, records, entries, rejected FROM {SERVER_PROGRESS}"
    f" WHERE {_OF} AND reader = %s FOR UPDATE"
)
_BEGIN = (
    f'INSERT INTO {SERVER_PROGRESS} (next_offset, records, entries, rejected, updated_ms, log_id, "partition", reader)'
    " VALUES (%s, 0, 0, 0, %s, %s, %s, %s)"
)
_MOVE = (
    f"UPDATE {SERVER_PROGRESS} SET next_offset = %s, records = %s, entries = %s, rejected = %s, updated_ms = %s"
    f" WHERE {_OF} AND reader = %s"
)
_LAST_OLDER = (
    f'SELECT MAX("offset") FROM (SELECT "offset", accepted_ms FROM {SERVER_MESSAGES} WHERE {_OF}'
    ' ORDER BY "offset" LIMIT %s) AS oldest WHERE accepted_ms < %s'
)
_PRUNE = f'DELETE FROM {SERVER_MESSAGES} WHERE {_OF} AND "offset" <= %s AND accepted_ms < %s'

_hash = lru_cache(_TOPICS_REMEMBERED)(topic_hash)


class _Kept(Struct, frozen=True):
    """What message_progress says of the archive of this log."""

    next_offset: int
    records: int = 0
    entries: int = 0
    rejected: int = 0

    def totals(self) -> dict[str, int]:
        missing = self.records - self.entries - self.rejected
        return {
            "records": self.records,
            "entries": self.entries,
            "rejected": self.rejected,
            "missing": missing,
        }

    def after(self, batch: MessageBatch) -> "_Kept":
        return _Kept(
            batch.end,
            self.records + batch.records,
            self.entries + len(batch.messages),
            self.rejected + batch.rejected,
        )


class ServerMessages:
    """Rows and position of one partition on the server. Needs no file of the broker's machine."""

    def __init__(self, server: SqlServer, log_id: int, partition: int) -> None:
        self._server = server
        self._partition = (log_id, partition)

    def kept(self) -> _Kept | None:
        """What the server has confirmed; None before its first."""
        with self._server.transaction() as cursor:
            return self._kept(cursor)

    def begin_at(self, offset: int) -> None:
        """Say where a new store starts; no effect when it has started."""
        with self._server.transaction() as cursor:
            if self._kept(cursor) is None:
                self._begin(cursor, offset)

    def write_table(self, table: pa.Table) -> int:
        """As `MessageStoreSink.write_table`."""
        with self._server.transaction() as cursor:
            kept = self._kept(cursor)
            batch = batch_from(table, kept.next_offset if kept else 0)
            if batch is None:
                return 0
            kept = kept or self._begin(cursor, batch.begin)
            self._server.put(cursor, self._rows(batch.messages))
            kept = kept.after(batch)
            values = (kept.next_offset, kept.records, kept.entries, kept.rejected, _now_ms())
            cursor.execute(_MOVE, (*values, *self._partition, ARCHIVE))
        return batch.end - batch.begin

    def prune(self, older_than_ms: int, rows_max: int) -> int:
        """As `MessageStoreSink.prune`."""
        with self._server.transaction() as cursor:
            cursor.execute(_LAST_OLDER, (*self._partition, rows_max, older_than_ms))
            (last,) = cursor.fetchone()
            if last is None:
                return 0
            cursor.execute(_PRUNE, (*self._partition, last, older_than_ms))
            return int(cursor.rowcount)

    def close(self) -> None:
        self._server.close()

    def _kept(self, cursor: Any) -> _Kept | None:
        """The store's position, locked until the transaction ends; None before its first."""
        cursor.execute(_POSITION, (*self._partition, ARCHIVE))
        row = cursor.fetchone()
        return None if row is None else _Kept(*map(int, row))

    def _begin(self, cursor: Any, offset: int) -> _Kept:
        cursor.execute(_BEGIN, (offset, _now_ms(), *self._partition, ARCHIVE))
        return _Kept(offset)

    def _rows(self, messages: pa.Table) -> Iterator[tuple[Any, ...]]:
        log_id = self._partition[0]
        for row in rows_of(messages, _ROWS_AT_A_TIME):
            yield (*row, log_id, _hash(row[_TOPIC]))


class MessageServer(MessageStoreSink):
    """Raises MessageServerError while the server does not answer; the next call tries again."""

    side_by_side = True

    def __init__(
        self, server: SqlServer, copy: Path, log_id: Callable[[], int], partition: int | None = None
    ) -> None:
        """`copy` is archive.db, `log_id` says which log the rows are of, `partition` is of a log in Kafka."""
        self.file = SinkFile(copy, ARCHIVE if partition is None else f"{ARCHIVE};{partition}")
        self._server = server
        self._found_log_id = log_id
        self._of = PARTITION if partition is None else partition
        self._log_id = 0
        self._messages = ServerMessages(server, self._log_id, self._of)

    def open(self) -> None:
        self._log_id = self._found_log_id()
        self._messages = ServerMessages(self._server, self._log_id, self._of)
        self.follow()

    def begin_at(self, offset: int) -> None:
        self._messages.begin_at(offset)
        self.open()

    def write_table(self, table: pa.Table) -> int:
        covered = self._messages.write_table(table)
        if covered:
            self.follow()
        return covered

    def task_writer(self) -> OpenWriter:
        return partial(ServerMessages, self._server, self._log_id, self._of)

    def follow(self) -> None:
        kept = self._messages.kept()
        self.file.copy(kept.next_offset if kept else None, kept.totals() if kept else {})

    def prune(self, older_than_ms: int, rows_max: int) -> int:
        return self._messages.prune(older_than_ms, rows_max)

    def close(self) -> None:
        self._messages.close()
        super().close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
