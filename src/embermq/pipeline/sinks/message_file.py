"""The message store in messages.db."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import DataFrame

from embermq.formats.message_table import ARCHIVE, COLUMNS
from embermq.pipeline.schema import COPY, MISSING
from embermq.pipeline.sinks.message_tasks import OpenWriter
from embermq.pipeline.sinks.sink_file import SinkFile


class MessageBatch(Struct, frozen=True):
    """Positions [begin, end) of the log, and the messages among them in the columns of `formats.message_table`."""

    begin: int
    end: int
    messages: pa.Table
    missing: int = 0
    """Positions that the log did not hold any more."""
    rejected: int = 0
    """Records that could not be understood."""

    @property
    def records(self) -> int:
        """What is counted of it: positions without a record, and copies, are not."""
        return len(self.messages) + self.missing + self.rejected


class MessageStoreSink(ABC):
    """Writes a batch of the archive and its position in one transaction.

    `file` says to the broker, and to status, which position the store has confirmed.
    """

    file: SinkFile
    side_by_side: bool
    """Whether partitions of a log in Kafka may be written at the same time."""

    @abstractmethod
    def open(self) -> None:
        """Before the query starts: find the store, and bring `file` to what the store says."""

    @abstractmethod
    def begin_at(self, offset: int) -> None:
        """Say where a new store starts; no effect when it has started."""

    def write(self, messages: DataFrame) -> int:
        """Take what `stored_messages` gives; returns the number of log positions it covered."""
        return self.write_table(messages.toArrow())

    @abstractmethod
    def write_table(self, table: pa.Table) -> int:
        """As `write`. Positions below the progress are skipped."""

    @abstractmethod
    def task_writer(self) -> OpenWriter:
        """How a task of Spark opens this store, which has begun, to write to it; `follow` afterwards."""

    @abstractmethod
    def follow(self) -> None:
        """Bring `file` to what the store says after tasks have written to it."""

    @abstractmethod
    def prune(self, older_than_ms: int, rows_max: int) -> int:
        """Delete from the oldest position on what was accepted before that time, at most `rows_max` rows."""

    def close(self) -> None:
        """Release files and connections."""
        self.file.close()


def batch_from(table: pa.Table, done: int) -> MessageBatch | None:
    """What is left to do of a table of `stored_messages` when everything below `done` is in the store; None for
    nothing."""
    table = table.filter(pc.greater_equal(table["offset"], done))
    if not len(table):
        return None
    begin = pc.min(table["offset"]).as_py()
    end = pc.max(pc.add(table["offset"], table["span"])).as_py()
    messages = table.filter(pc.is_null(table["error"])).select(COLUMNS)
    return MessageBatch(begin, end, messages, missing_of(table), _rejected_of(table))


def missing_of(table: pa.Table) -> int:
    """Positions among these rows that the log did not hold any more."""
    gone = table.filter(pc.starts_with(table["error"], MISSING))
    return pc.sum(gone["span"]).as_py() or 0


def _rejected_of(table: pa.Table) -> int:
    errors = table.filter(pc.is_valid(table["error"]))
    is_other = pc.or_(pc.starts_with(errors["error"], MISSING), pc.equal(errors["error"], COPY))
    return pc.sum(errors.filter(pc.invert(is_other))["span"]).as_py() or 0


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
