"""Every QoS 1 and 2 message by position, until it is too old: the sink of the archive, wherever its store is."""

from abc import ABC, abstractmethod

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import DataFrame

from embermq.formats.message_table import COLUMNS
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
