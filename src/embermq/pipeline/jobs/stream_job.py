"""What every streaming query is: a source read from the sink's own progress, a transform, a sink, and its upkeep."""

import shutil
import threading
import time
from abc import abstractmethod
from contextlib import closing
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from embermq.pipeline.errors import LogBehindProgressError
from embermq.pipeline.jobs.query_job import JobSetup, LastBatch, QueryJob
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.pipeline.sources import message_log
from embermq.pipeline.sources.log_file import LogFile


class StreamJob(QueryJob):
    """One query on the embedded log. A subclass says what is read, what is made of it and where it goes.

    Batches come from Spark's thread, upkeep from the driver's: `_lock` keeps them apart.
    """

    file: SinkFile

    def __init__(self, settings: DriverSettings, places: Places) -> None:
        """A subclass opens its sink here."""
        self.settings = settings
        self.places = places
        self.last_batch: LastBatch | None = None
        self._has_begun = False
        self._lock = threading.Lock()

    @classmethod
    def create(cls, setup: JobSetup) -> Self:
        return cls(setup.settings, setup.places)

    @property
    @abstractmethod
    def trigger_ms(self) -> int:
        """From the start of a batch to the start of the next, unless a full one waits; 0 for none."""

    @abstractmethod
    def read(self, spark: SparkSession, start: int) -> DataFrame:
        """The stream of rows for the sink, from the offset on."""

    @abstractmethod
    def write(self, rows: DataFrame) -> int:
        """Give one batch its effect, exactly once; returns how many positions of the log it covered."""

    @abstractmethod
    def keep_up(self, now_ms: int) -> None:
        """One bounded round of trimming or pruning."""

    def confirmed(self) -> int | None:
        """The sink's progress, as it is asked for before each start; None for a new sink."""
        return self.file.position()

    def begin_at(self, offset: int) -> None:
        """Tell a new sink where it starts."""
        self.file.begin_at(offset)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start from the sink's progress. Spark's checkpoint is made anew, so a lost or torn one means nothing."""
        checkpoint = self.places.checkpoints / self.name
        shutil.rmtree(checkpoint, ignore_errors=True)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
        self._has_begun = False
        return (
            self.read(spark, self._first_offset())
            .writeStream.queryName(self.name)
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(self._batch)
            .start()
        )

    def has_begun(self, query: StreamingQuery) -> bool:
        """Whether the probe has come through."""
        return self._has_begun

    def lag(self) -> int:
        """Records of the log that the sink has not confirmed; 0 while there is no log."""
        with closing(LogFile(self.places.log)) as log:
            end = log.end()
        with self._lock:
            return 0 if end is None else end - (self.file.position() or 0)

    def upkeep(self, now_ms: int) -> None:
        """Check that log and sink belong together, then tidy up."""
        self._check_log()
        with self._lock:
            self.keep_up(now_ms)

    def quiesce(self, timeout_s: float) -> None:
        """Wait until no batch is being written, and let none begin."""
        self._lock.acquire(timeout=timeout_s)

    def source_options(self, start: int) -> dict[str, str]:
        """Options that all sources over broker.db take."""
        settings = self.settings
        return {
            "path": str(self.places.log),
            "broker": str(self.places.broker),
            "start": str(start),
            "probe": "first",
            "records_max": str(settings.max_records_per_batch),
            "bytes_max": str(settings.max_bytes_per_batch),
            "split_records": str(settings.split_records),
            "interval_ms": str(self.trigger_ms),
            "idle_wait_ms": str(settings.idle_wait_ms),
            "poll_ms": str(settings.poll_ms),
        }

    def read_log(self, spark: SparkSession, start: int, columns: str) -> DataFrame:
        """The message log from the offset on."""
        source = spark.readStream.format(message_log.FORMAT)
        return source.options(**self.source_options(start), columns=columns).load()

    def _batch(self, rows: DataFrame, number: int) -> None:
        with self._lock:
            began = time.monotonic()
            records = self.write(rows)
            if number == 0:
                assert not records, "the probe has no effect"
                self._has_begun = True
                return
            duration_ms = round((time.monotonic() - began) * 1000)
            self.last_batch = LastBatch(records, duration_ms, time.time_ns() // 1_000_000)

    def _first_offset(self) -> int:
        """The sink's progress; a new sink begins with the oldest record that is there, and says so to the broker."""
        with self._lock:
            position = self.confirmed()
        if position is None:
            with closing(LogFile(self.places.log)) as log:
                bounds = log.bounds()
            position = bounds.first if bounds else 0
            with self._lock:
                self.begin_at(position)
        self._check_log()
        return position

    def _check_log(self) -> None:
        if self.lag() < 0:
            raise LogBehindProgressError(
                f"the message log ends {-self.lag()} records before the position that {self.name} has already "
                f"written: {self.places.log.name} and the sink's file are not of the same life"
            )
