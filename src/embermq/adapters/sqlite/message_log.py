"""Reading and trimming the message log in broker.db."""

import sqlite3
from collections import deque

from embermq.adapters.sqlite.connection import to_store_error
from embermq.adapters.sqlite.tick_store import SqliteTickStore
from embermq.ports.message_log import LogBatch, LogStatistics, MessageLog

STRETCHES = 500
"""The bytes of the log are known in about so many stretches; one that is trimmed in part is added up again."""


class SqliteMessageLog(MessageLog):
    """Reads with a connection of its own; trimming is left to the next ticks of the store that appends."""

    def __init__(self, connection: sqlite3.Connection, store: SqliteTickStore) -> None:
        self._connection = connection
        self._store = store
        self._sizes: deque[tuple[int, int]] = deque()
        """(first offset, bytes of bodies) of consecutive stretches: adding up the whole log takes seconds."""
        self._sized_to = 0

    def read(self, from_offset: int, *, records_max: int, bytes_max: int) -> list[LogBatch]:
        first = self._connection.execute(
            "SELECT base_offset FROM log_batch WHERE base_offset <= ? ORDER BY base_offset DESC LIMIT 1",
            (from_offset,),
        ).fetchone()
        start = first[0] if first else 0
        rows = self._connection.execute(
            "SELECT base_offset, record_count, body FROM log_batch WHERE base_offset >= ? ORDER BY base_offset",
            (start,),
        )
        batches: list[LogBatch] = []
        records = size = 0
        for base, count, body in rows:
            if base + count <= from_offset:
                continue
            batches.append(LogBatch(base, count, body))
            records += count
            size += len(body)
            if records >= records_max or size >= bytes_max:
                break
        rows.close()
        return batches

    def statistics(self) -> LogStatistics:
        start, last = self._connection.execute(
            "SELECT (SELECT MIN(base_offset) FROM log_batch), (SELECT MAX(base_offset) FROM log_batch)"
        ).fetchone()
        end = self._store.log_end
        if start is None:
            self._sizes.clear()
            return LogStatistics(end, end, 0)
        sizes = self._sizes
        while len(sizes) > 1 and sizes[1][0] <= start:
            sizes.popleft()
        if not sizes or sizes[0][0] < start:  # trimmed in part
            upper = sizes[1][0] if len(sizes) > 1 else last + 1
            first = (start, self._body_bytes(start, upper))
            if sizes:
                sizes[0] = first
            else:
                sizes.append(first)
            self._sized_to = max(self._sized_to, upper)
        if last >= self._sized_to:
            fresh = self._body_bytes(self._sized_to, last + 1)
            begin, newest = sizes[-1]
            if newest * STRETCHES < sum(size for _, size in sizes):
                sizes[-1] = (begin, newest + fresh)
            else:
                sizes.append((self._sized_to, fresh))
            self._sized_to = last + 1
        return LogStatistics(start, end, sum(size for _, size in sizes))

    def _body_bytes(self, start: int, end: int) -> int:
        """Of the batches that begin in [start, end)."""
        (size,) = self._connection.execute(
            "SELECT SUM(body_bytes) FROM log_batch WHERE base_offset >= ? AND base_offset < ?", (start, end)
        ).fetchone()
        return size or 0

    def offset_at(self, time_ms: int) -> int:
        end = self._store.log_end
        try:
            row = self._connection.execute(
                "SELECT MIN(base_offset) FROM log_batch WHERE committed_ms >= ?", (time_ms,)
            ).fetchone()
        except sqlite3.Error as error:
            raise to_store_error(error, "cannot read the message log in broker.db") from error
        return end if row[0] is None else int(row[0])

    def trim(self, below_offset: int) -> None:
        self._store.trim_below = max(self._store.trim_below, below_offset)
