"""dispatch: message log -> application logs, on the embedded log."""

import shutil
import threading
import time
from contextlib import closing
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from embermq.pipeline.errors import LogBehindProgressError
from embermq.pipeline.jobs.query_job import JobSetup, LastBatch, QueryJob
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks.application_logs import ApplicationLogSink
from embermq.pipeline.sources import message_log
from embermq.pipeline.sources.log_file import LogFile
from embermq.pipeline.transforms.dispatch import application_entries


class Dispatch(QueryJob):
    """The query that APPLICATION clients wait for; its latency is the pipeline's latency.

    Batches come from Spark's thread, upkeep from the driver's: `_lock` keeps them apart.
    """

    name = "dispatch"

    def __init__(self, settings: DriverSettings, places: Places) -> None:
        self.settings = settings
        self.places = places
        self.last_batch: LastBatch | None = None
        self._sink = ApplicationLogSink(places.applications)
        self.file = self._sink.file
        self._is_owed = not settings.has_waited
        self._has_begun = False
        self._lock = threading.Lock()

    @classmethod
    def create(cls, setup: JobSetup) -> Self:
        return cls(setup.settings, setup.places)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start from the sink's progress. Spark's checkpoint is made anew, so a lost or torn one means nothing."""
        checkpoint = self.places.checkpoints / self.name
        shutil.rmtree(checkpoint, ignore_errors=True)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
        self._has_begun = False
        source = spark.readStream.format(message_log.FORMAT).options(
            **self._source_options(self.first_offset())
        )
        return (
            application_entries(source.load())
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
        """Check that log and sink belong together, then trim what has been acknowledged."""
        self._check_log()
        with self._lock:
            self._sink.trim(self.places, self.settings.prune_rows_max)

    def quiesce(self, timeout_s: float) -> None:
        """Wait until no batch is being written, and let none begin."""
        self._lock.acquire(timeout=timeout_s)

    def _source_options(self, start: int) -> dict[str, str]:
        settings = self.settings
        return {
            "path": str(self.places.log),
            "broker": str(self.places.broker),
            "start": str(start),
            "columns": "route",
            "probe": "first",
            "records_max": str(settings.max_records_per_batch),
            "bytes_max": str(settings.max_bytes_per_batch),
            "split_records": str(settings.split_records),
            "interval_ms": str(settings.dispatch_trigger_ms),
            "rest_ms": str(max(0, settings.dispatch_rest_ms - settings.dispatch_trigger_ms)),
            "idle_wait_ms": str(settings.idle_wait_ms),
            "poll_ms": str(settings.poll_ms),
        }

    def _batch(self, rows: DataFrame, number: int) -> None:
        with self._lock:
            began = time.monotonic()
            records = self._sink.write(rows)
            if number == 0:
                assert not records, "the probe has no effect"
                self._has_begun = True
                return
            duration_ms = round((time.monotonic() - began) * 1000)
            self.last_batch = LastBatch(records, duration_ms, time.time_ns() // 1_000_000)

    def first_offset(self) -> int:
        """The sink's progress; a new sink begins with the oldest record that is there, and says so to the broker. So
        does one that is owed nothing of what is gone."""
        is_owed, self._is_owed = self._is_owed, True  # somebody is there from now on, also in the next run
        with closing(LogFile(self.places.log)) as log:
            bounds = log.bounds()
        first = bounds.first if bounds else 0
        with self._lock:
            position = self.file.position()
            if position is None:
                position = first
                self.file.begin_at(first)
            elif not is_owed and first > position:
                position = first
                with self.file.transaction():
                    self.file.move_to(first)
        self._check_log()
        return position

    def _check_log(self) -> None:
        if self.lag() < 0:
            raise LogBehindProgressError(
                f"the message log ends {-self.lag()} records before the position that {self.name} has already "
                f"written: {self.places.log.name} and the sink's file are not of the same life"
            )
