"""The records of a range of log and lake, without their payloads: read once, and kept in files of a job for as many
questions as it has."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from embermq.pipeline.jobs.past_range import PastRange
from embermq.pipeline.jobs.past_records import PastRecords, has_lake, log_bounds, log_id_of
from embermq.pipeline.jobs.replay_values import ReplayRange
from embermq.pipeline.places import Places
from embermq.pipeline.settings import PipelineSettings
from embermq.pipeline.sinks.delta_table import DeltaTable
from embermq.pipeline.sinks.lake import lake_place
from embermq.pipeline.transforms.audit import audited_records
from embermq.pipeline.transforms.replay import accepted_within

TRIES = 3
"""The log may let go of records while they are read: then the lake has them."""
NOWHERE = 2**62
_BROADCAST = "spark.sql.autoBroadcastJoinThreshold"


class KeptRecords:
    """Those of the present log. `lake_first` is the first position of it that the lake has, `NOWHERE` without any:
    retention may have taken what was before."""

    def __init__(
        self, spark: SparkSession, settings: PipelineSettings, places: Places, wanted: PastRange, work: Path
    ) -> None:
        self._past = PastRecords(spark, settings, places)
        self._lake = lake_place(settings, places) if has_lake(settings, places) else ""
        self._wanted = wanted
        self._folder = str(work / "records")
        self.lake_first = self._first_in_lake()

    def keep(self, end: int, log_first: int) -> int:
        """Read those before `end`; returns where they begin. `log_first`: where the log began when it was looked at."""
        wanted = self._wanted
        for last in (*[False] * (TRIES - 1), True):
            bounds = log_bounds(self._past.places)
            first = min(self.lake_first, bounds.first)
            start = first if wanted.start is None else max(first, min(wanted.start, end))
            asked = ReplayRange(topic_filter="#", log_end=end, start=start, start_ms=wanted.start_ms)
            kept = self._within(self._past.in_log(asked, bounds))
            if start < bounds.first:
                asked = ReplayRange(topic_filter="#", log_end=end, start=start)
                kept = kept.unionByName(
                    self._within(self._past.in_lake(asked, bounds)), allowMissingColumns=True
                )
            audited_records(kept, F.col("offset") < log_first).write.mode("overwrite").parquet(self._folder)
            if log_bounds(self._past.places).first == bounds.first or last:
                break
        return start

    def read(self) -> DataFrame:
        """What was kept: see `audited_records`."""
        return self._past.spark.read.parquet(self._folder)

    def in_lake(self) -> DataFrame:
        """All that the lake has of this log; it has some."""
        is_this = F.col("log_id") == log_id_of(self._past.places)
        return self._past.spark.read.format("delta").load(self._lake).where(is_this)

    def _within(self, records: DataFrame) -> DataFrame:
        return records.where(accepted_within(_moment(self._wanted.start_ms), _moment(self._wanted.end_ms)))

    def _first_in_lake(self) -> int:
        if not self._lake or not DeltaTable(self._past.spark, self._lake).exists():
            return NOWHERE
        row = self.in_lake().agg(F.min("offset")).first()
        return NOWHERE if row is None or row[0] is None else int(row[0])


@contextmanager
def joins_in_little_memory(spark: SparkSession) -> Iterator[None]:
    """Tables of millions of rows are joined: Spark would take positions for few, since they are small in files, and
    hold all of them in its heap at once."""
    before = spark.conf.get(_BROADCAST)
    assert before is not None, "Spark has a default"
    spark.conf.set(_BROADCAST, "-1")
    try:
        yield
    finally:
        spark.conf.set(_BROADCAST, before)


def iso_date(time_ms: int | None) -> str | None:
    """Unix milliseconds in ISO 8601, UTC, to the millisecond; None stays None."""
    moment = _moment(time_ms)
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def _moment(time_ms: int | None) -> datetime | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1_000, UTC)
