"""The message log as archive, lake and traffic read it: ranges of its partitions, each read once for all of them.

Here is the embedded log; `jobs.kafka_bulk_log` is the one in Kafka.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from embermq.pipeline.errors import LogBehindProgressError
from embermq.pipeline.log_look import Bounds, Positions
from embermq.pipeline.places import Places
from embermq.pipeline.schema import PARTITION, record_schema
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sources import message_log
from embermq.pipeline.sources.batch_file import write_batch, write_probe
from embermq.pipeline.sources.log_file import Counted, LogFile, embedded_log_id
from embermq.pipeline.sources.receipts import ReceiptFile

_PATTERN = re.compile(r"[][{}*?\\]")
"""In a path that Spark reads these stand for others."""


class BulkBatch:
    """Records that were read once, as rows of `record_schema`, on disk until `release`."""

    def __init__(self, rows: DataFrame, file: Path | None = None) -> None:
        """`file`: where they are as Parquet, of the embedded log; those of Kafka are blocks of Spark's."""
        self.rows = rows
        self.file = file

    def release(self) -> None:
        """Nobody reads them any more."""
        if self.file:
            self.file.unlink(missing_ok=True)
        else:
            self.rows.unpersist()


class BulkLog(ABC):
    """Says what the log held at the last look, and reads ranges of it. `look`, `starts`, `bounded` and
    `receipt_bounds` are called by the loop, and wait for no server; the others by threads of the parts."""

    is_partitioned: bool
    """Whether sinks keep a position for each partition; the embedded log has one partition."""
    bounds: Mapping[int, Bounds] = {}
    """At the last look, by partition; {} before the first that had an answer."""

    @abstractmethod
    def look(self) -> None:
        """Take note of how far the log is."""

    @abstractmethod
    def identity(self) -> int:
        """Which log it is: another one when it was made anew."""

    @abstractmethod
    def starts(self, query: str, done: Positions) -> dict[int, int]:
        """Where a query that has `done` this goes on, in every partition. Raises LogBehindProgressError."""

    @abstractmethod
    def since(self, time_ms: int) -> dict[int, int]:
        """Of each partition an offset behind which all is that was committed at that time or later, the end of the log
        when nothing was. Asks a server."""

    @abstractmethod
    def bounded(self, starts: Positions, ends: Positions) -> dict[int, int]:
        """Where a batch from `starts` ends: bounded in records and bytes, at `ends` at most."""

    @abstractmethod
    def read(self, begin: Positions, end: Positions) -> DataFrame:
        """The records of these ranges, as rows of `record_schema`."""

    def keep(self, begin: Positions, end: Positions) -> BulkBatch:
        """Read these ranges, for several to take them."""
        rows = self.read(begin, end).persist(StorageLevel.DISK_ONLY)
        try:
            self.measure(rows)
        except Exception:
            rows.unpersist()  # Spark would keep what it has of them for ever
            raise
        return BulkBatch(rows)

    @abstractmethod
    def probe(self, starts: Positions) -> BulkBatch:
        """Something that goes through every step and that a sink at `starts` skips as a repeat."""

    @abstractmethod
    def receipt_bounds(self) -> Mapping[int, Bounds]:
        """What there is of delivery receipts; {} while there are none to be read."""

    @abstractmethod
    def read_receipts(self, begin: Positions, end: Positions) -> DataFrame | pa.Table:
        """Rows of `traffic_schema` of these receipts."""

    @abstractmethod
    def measure(self, rows: DataFrame) -> None:
        """Take note of how large the records of a batch are."""

    @abstractmethod
    def publish(self, query: str, positions: Positions) -> None:
        """Say that every record below has had its effect."""

    def close(self) -> None:
        """Nobody looks any more."""
        return


class EmbeddedLog(BulkLog):
    """The segment files beside the driver."""

    is_partitioned = False

    def __init__(self, settings: DriverSettings, places: Places, spark: SparkSession) -> None:
        self._settings = settings
        self._places = places
        self._spark = spark
        self._log = LogFile(places.log)
        """The loop's."""
        self._counted = Counted()
        self._end: int | None = None
        """None while there is no log."""

    def look(self) -> None:
        found = self._log.bounds()
        self._end = None if found is None else found.end
        self.bounds = {PARTITION: Bounds(0, 0) if found is None else Bounds(found.first, found.end)}

    def identity(self) -> int:
        return embedded_log_id(self._places.broker)

    def starts(self, query: str, done: Positions) -> dict[int, int]:
        at = done.get(PARTITION, self.bounds[PARTITION].first)
        if self._end is not None and at > self._end:
            raise LogBehindProgressError(
                f"the message log ends {at - self._end} records before the position that {query} has already "
                f"written: {self._places.log.name} and the sink's file are not of the same life"
            )
        return {PARTITION: at}

    def since(self, time_ms: int) -> dict[int, int]:
        with closing(LogFile(self._places.log)) as log:
            return {PARTITION: log.since(time_ms)}

    def bounded(self, starts: Positions, ends: Positions) -> dict[int, int]:
        settings, start = self._settings, starts[PARTITION]
        most = settings.max_records_per_batch, settings.max_bytes_per_batch
        end = self._log.bounded_end(start, *most, self._counted)
        return {PARTITION: min(end, ends[PARTITION])}

    def read(self, begin: Positions, end: Positions) -> DataFrame:
        source = self._spark.read.format(message_log.FORMAT).options(
            path=str(self._places.log), columns="all", split_records=str(self._settings.split_records)
        )
        return source.options(start=str(begin[PARTITION]), end=str(end[PARTITION])).load()

    def keep(self, begin: Positions, end: Positions) -> BulkBatch:
        file = self._new_file()
        write_batch(self._spark, self._places.log, begin[PARTITION], end[PARTITION], file)
        return self._in_file(file)

    def probe(self, starts: Positions) -> BulkBatch:
        file = self._new_file()
        write_probe(self._spark, file)
        return self._in_file(file)

    def _new_file(self) -> Path:
        """What a driver leaves in that folder goes with it."""
        folder = self._places.scratch / "batches"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{uuid4().hex}.parquet"

    def _in_file(self, file: Path) -> BulkBatch:
        """One task reads it: more of them, and a shuffle, cost more than they save."""
        path = _PATTERN.sub(r"\\\g<0>", str(file))
        rows = self._spark.read.schema(record_schema()).parquet(f"file://{path}")
        return BulkBatch(rows.coalesce(1), file)

    def receipt_bounds(self) -> Mapping[int, Bounds]:
        with closing(ReceiptFile(self._places.broker)) as receipts:
            return {PARTITION: Bounds(receipts.first(), receipts.end())}

    def read_receipts(self, begin: Positions, end: Positions) -> pa.Table:
        with closing(ReceiptFile(self._places.broker)) as receipts:
            return receipts.table(begin[PARTITION], end[PARTITION])

    def measure(self, rows: DataFrame) -> None:
        """The log itself tells."""

    def publish(self, query: str, positions: Positions) -> None:
        """The files of the sinks say it."""

    def close(self) -> None:
        self._log.close()
