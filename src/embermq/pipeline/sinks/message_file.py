"""The message store in messages.db."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from embermq.formats.message_table import ARCHIVE, COLUMNS
from embermq.pipeline.sinks.message_store import MessageStoreSink, batch_from
from embermq.pipeline.sinks.message_tasks import OpenWriter
from embermq.pipeline.sinks.sink_file import SinkFile

_NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
_INSERT = (
    f"INSERT INTO {{table}} ({_NAMES}) VALUES ({', '.join('?' for _ in COLUMNS)}) ON CONFLICT DO NOTHING"
)
_PRUNE = """
DELETE FROM {table} WHERE "partition" = ?1 AND "offset" IN (
    SELECT "offset" FROM (
        SELECT "offset", accepted_ms FROM {table} WHERE "partition" = ?1 ORDER BY "offset" LIMIT ?2
    ) WHERE accepted_ms < ?3
)
"""
_ROWS_PER_INSERT = 5_000


class MessageFile(MessageStoreSink):
    """The file is the store: it has the messages and the progress. Of a log in Kafka there is one for each partition,
    with a table that they share."""

    side_by_side = False

    def __init__(self, path: Path, partition: int | None = None) -> None:
        if partition is None:
            table, reader, schema = "message", ARCHIVE, "messages.sql"
        else:
            table, reader, schema = "kafka_message", f"{ARCHIVE};{partition}", "kafka_messages.sql"
        self.file = SinkFile(path, reader, ("embermq.formats", schema))
        self._path = path
        self._partition = partition
        self._insert = _INSERT.format(table=table)
        self._prune = _PRUNE.format(table=table)

    def open(self) -> None:
        """It is open."""

    def begin_at(self, offset: int) -> None:
        self.file.begin_at(offset)

    def write_table(self, table: pa.Table) -> int:
        with self.file.transaction() as connection:
            batch = batch_from(table, self.file.position() or 0)
            if batch is None:
                return 0
            connection.executemany(self._insert, rows_of(batch.messages, _ROWS_PER_INSERT))
            self.file.count(
                records=batch.records,
                entries=len(batch.messages),
                rejected=batch.rejected,
                missing=batch.missing,
                bytes=pc.sum(pc.binary_length(batch.messages["payload"])).as_py() or 0,
            )
            self.file.move_to(batch.end)
        return batch.end - batch.begin

    def task_writer(self) -> OpenWriter:
        return partial(MessageFile, self._path, self._partition)

    def follow(self) -> None:
        """The file itself has the position."""

    def prune(self, older_than_ms: int, rows_max: int) -> int:
        with self.file.transaction() as connection:
            return connection.execute(self._prune, (self._partition or 0, rows_max, older_than_ms)).rowcount


def rows_of(messages: pa.Table, at_a_time: int) -> Iterator[tuple[Any, ...]]:
    """Rows of Python values, so many at a time in memory."""
    for batch in messages.to_batches(max_chunksize=at_a_time):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
