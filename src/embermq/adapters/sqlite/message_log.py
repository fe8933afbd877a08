"""Reading and trimming the message log in broker.db."""

import sqlite3

from embermq.adapters.sqlite.tick_store import SqliteTickStore
from embermq.ports.message_log import LogBatch, LogStatistics, MessageLog


class SqliteMessageLog(MessageLog):
    """Reads with a connection of its own; trimming is left to the next ticks of the store that appends."""

    def __init__(self, connection: sqlite3.Connection, store: SqliteTickStore) -> None:
        self._connection = connection
        self._store = store

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
        start, size = self._connection.execute(
            "SELECT MIN(base_offset), SUM(body_bytes) FROM log_batch"
        ).fetchone()
        end = self._store.log_end
        return LogStatistics(end if start is None else start, end, size or 0)

    def offset_at(self, time_ms: int) -> int:
        row = self._connection.execute(
            "SELECT MIN(base_offset) FROM log_batch WHERE committed_ms >= ?", (time_ms,)
        ).fetchone()
        return self._store.log_end if row[0] is None else int(row[0])

    def trim(self, below_offset: int) -> None:
        self._store.trim_below = max(self._store.trim_below, below_offset)
