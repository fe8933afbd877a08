"""The message store in messages.db."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from embermq.model.message_table import ARCHIVE, COLUMNS
from embermq.pipeline.sinks.message_store import MessageStoreSink, batch_from
from embermq.pipeline.sinks.sink_file import SinkFile

_NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
_INSERT = f"INSERT INTO message ({_NAMES}) VALUES ({', '.join('?' for _ in COLUMNS)}) ON CONFLICT DO NOTHING"
_PRUNE = """
DELETE FROM message WHERE "offset" IN (
    SELECT "offset" FROM (SELECT "offset", accepted_ms FROM message ORDER BY "offset" LIMIT ?)
    WHERE accepted_ms < ?
)
"""
_ROWS_PER_INSERT = 5_000


class MessageFile(MessageStoreSink):
    """The file is the store: it has the messages and the progress."""

    def __init__(self, path: Path) -> None:
        self.file = SinkFile(path, ARCHIVE, ("embermq.model", "messages.sql"))

    def open(self) -> None:
        """It is open."""

    def begin_at(self, offset: int) -> None:
        self.file.begin_at(offset)

    def write_table(self, table: pa.Table) -> int:
        batch = batch_from(table, self.file.position() or 0)
        if batch is None:
            return 0
        with self.file.transaction() as connection:
            connection.executemany(_INSERT, rows_of(batch.messages, _ROWS_PER_INSERT))
            self.file.count(
                records=batch.end - batch.begin, entries=len(batch.messages), rejected=batch.rejected
            )
            self.file.move_to(batch.end)
        return batch.end - batch.begin

    def prune(self, older_than_ms: int, rows_max: int) -> int:
        with self.file.transaction() as connection:
            return connection.execute(_PRUNE, (rows_max, older_than_ms)).rowcount


def rows_of(messages: pa.Table, at_a_time: int) -> Iterator[tuple[Any, ...]]:
    """Rows of Python values, so many at a time in memory."""
    for batch in messages.to_batches(max_chunksize=at_a_time):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
