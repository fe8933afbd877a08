"""Where past messages are: the lake for what the log has let go of, the log for the rest."""

from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from embermq.pipeline.errors import ReplayError
from embermq.pipeline.jobs.replay_values import ReplayRange
from embermq.pipeline.places import Places
from embermq.pipeline.settings import PipelineSettings, is_s3, slot_of_pipeline
from embermq.pipeline.sinks.delta_table import DeltaTable
from embermq.pipeline.sinks.lake import lake_place
from embermq.pipeline.sources.log_file import BrokerFile, LogBounds, LogFile
from embermq.pipeline.sources.message_log import FORMAT
from embermq.pipeline.transforms.replay import accepted_within, matches_filter

LAKE_ORDER = ("life", "log_id", "partition", "offset")


class PastRecords(Struct, frozen=True):
    """Reads them with Spark; a lake may be read by a session that was started for one."""

    spark: SparkSession
    settings: PipelineSettings
    places: Places

    def in_log(self, wanted: ReplayRange, bounds: LogBounds) -> DataFrame:
        """The wanted records that the log still has."""
        places = self.places
        start = max(wanted.start or 0, bounds.first)
        if wanted.start_ms is not None:
            log = LogFile(places.log)
            start = max(start, log.before(wanted.start_ms))
            log.close()
        end = max(start, wanted.end)
        source = self.spark.read.format(FORMAT).options(path=str(places.log), start=str(start), end=str(end))
        return source.load()

    def in_lake(self, wanted: ReplayRange, bounds: LogBounds) -> DataFrame:
        """What the log does not have. Offsets are those of this life of the log; a time may lie in an earlier one."""
        offset = F.col("offset")
        is_gone = (offset >= (wanted.start or 0)) & (offset < min(bounds.first, wanted.end))
        log_id = log_id_of(self.places)
        return rows_of_lake(self.spark, self.settings, self.places, wanted, log_id=log_id, is_gone=is_gone)


def rows_of_lake(
    spark: SparkSession,
    settings: PipelineSettings,
    places: Places,
    wanted: ReplayRange,
    *,
    log_id: int,
    is_gone: Column,
) -> DataFrame:
    """Of this log what `is_gone` from it; of earlier lives, in which offsets mean something else, what is wanted by
    time, unless there are other slots, whose logs are no earlier lives of this one. Raises ReplayError when there is no
    lake."""
    place = lake_place(settings, places)
    if not DeltaTable(spark, place).exists():
        raise ReplayError(f"{place} has no lake")
    is_this = F.col("log_id") == log_id
    by_offset = wanted.start is not None or wanted.end_offset is not None
    is_only_this = by_offset or slot_of_pipeline(settings) is not None
    rows = spark.read.format("delta").load(place)
    rows = rows.where(is_this & is_gone if is_only_this else ~is_this | is_gone)
    rows = rows.withColumns({"error": F.lit(None).cast("string"), "span": F.lit(1).cast("long")})
    return rows.where(accepted_in(wanted))


def in_lives(within: DataFrame, topic_filter: str) -> DataFrame:
    """Records of a lake with the column `life`: `LAKE_ORDER` is the order in which they came."""
    matched = within.where(matches_filter(topic_filter))
    lives = matched.groupBy("log_id").agg(F.min("accepted_at").alias("at"))
    order = [row["log_id"] for row in lives.orderBy("at", "log_id").collect()]
    ranks: list[Column] = [F.when(F.col("log_id") == one, F.lit(rank)) for rank, one in enumerate(order)]
    return within.withColumn("life", F.coalesce(*ranks, F.lit(len(order))))


def accepted_in(wanted: ReplayRange) -> Column:
    """Whether a record was accepted within its times."""
    return accepted_within(_moment(wanted.start_ms), _moment(wanted.end_ms))


def log_bounds(places: Places) -> LogBounds:
    """The first offset that the log has, and the one behind its last."""
    log = LogFile(places.log)
    try:
        return log.bounds() or LogBounds(0, 0)
    finally:
        log.close()


def begins_before(places: Places, wanted: ReplayRange, bounds: LogBounds) -> bool:
    """Whether the range may have something that the log has not."""
    if wanted.start is not None:
        return wanted.start < bounds.first
    if wanted.start_ms is None:
        return True
    log = LogFile(places.log)
    try:
        oldest_ms = log.committed_ms(bounds.first)
    finally:
        log.close()
    return oldest_ms is None or wanted.start_ms < oldest_ms


def has_lake(settings: PipelineSettings, places: Places) -> bool:
    """Whether there is one, or should be."""
    place = lake_place(settings, places)
    return "lake" in settings.queries if is_s3(settings) else (Path(place) / "_delta_log").is_dir()


def log_id_of(places: Places) -> int:
    """Which log the broker has."""
    broker = BrokerFile(places.broker)
    try:
        return broker.log_identity()
    finally:
        broker.close()


def _moment(time_ms: int | None) -> datetime | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1_000, UTC)
