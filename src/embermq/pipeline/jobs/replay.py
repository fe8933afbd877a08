"""replay, first part: Spark chooses messages of the lake and of the log, and keeps them in files, in their order.

What was chosen stays as it is, whatever is published, removed from the log or merged in the lake meanwhile: a replay
into the range that it reads ends. The second part, `replay_feed`, needs no Spark any more.
"""

import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from embermq.pipeline.batch import batch_session
from embermq.pipeline.connector import lake_jars
from embermq.pipeline.errors import ReplayError
from embermq.pipeline.jobs.replay_feed import LAKE_PART, LOG_PART
from embermq.pipeline.jobs.replay_values import Chosen, ReplayRange
from embermq.pipeline.places import Places
from embermq.pipeline.settings import PipelineSettings, is_s3
from embermq.pipeline.sinks.delta_table import DeltaTable
from embermq.pipeline.sinks.lake import lake_place
from embermq.pipeline.sources.log_file import BrokerFile, LogBounds, LogFile
from embermq.pipeline.sources.message_log import FORMAT, MessageLogSource
from embermq.pipeline.transforms.replay import (
    accepted_within,
    judged_records,
    matches_filter,
    measures,
    staged,
)

ROWS_A_FILE = 100_000
TRIES = 3
"""The log may let go of records while they are read: then the lake has them."""
_WRITING = {
    "maxRecordsPerFile": str(ROWS_A_FILE),
    "parquet.page.size.row.check.min": "10",  # of large messages few fill a row group
}


def choose(
    settings: PipelineSettings, places: Places, wanted: ReplayRange, *, into: Path | None, tasks: int
) -> Chosen:
    """Write what is wanted into the folder `into`; None: count it alone. Raises ReplayError, PipelineError."""
    began = time.monotonic()
    bounds = _bounds(places)
    uses_lake = _begins_before(places, wanted, bounds) and _has_lake(settings, places)
    if uses_lake:
        lake_jars(settings)
    with (
        tempfile.TemporaryDirectory(prefix="embermq-") as work,
        batch_session(settings, tasks, Path(work), lake=uses_lake, spill=into) as spark,
    ):
        spark.dataSource.register(MessageLogSource)
        try:
            sources = _Sources(spark, settings, places)
            found = _choose(sources, wanted, bounds, into, uses_lake=uses_lake)
        except PySparkException as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ReplayError(f"the messages cannot be read: {reason}") from error
    return replace(found, seconds=round(time.monotonic() - began, 3))


class _Sources(Struct, frozen=True):
    """Where messages are."""

    spark: SparkSession
    settings: PipelineSettings
    places: Places


def _choose(
    sources: _Sources,
    wanted: ReplayRange,
    bounds: LogBounds,
    into: Path | None,
    *,
    uses_lake: bool,
) -> Chosen:
    now = datetime.now(UTC)
    for last in (*[False] * (TRIES - 1), True):
        parts: list[Chosen] = []
        if uses_lake:
            lake = _lake_records(sources, wanted, bounds)
            found = _take(lake, wanted, now, into and into / LAKE_PART, ordered_by=_LAKE_ORDER)
            parts.append(replace(found, from_lake=found.chosen))
        parts.append(_take(_log_records(sources, wanted, bounds), wanted, now, into and into / LOG_PART))
        now_there = _bounds(sources.places)
        if now_there.first == bounds.first or last:
            break
        bounds = now_there
    together = _sum(parts)
    if wanted.start is None:
        return together
    older = max(0, min(bounds.first, wanted.end) - wanted.start)  # offsets that the log does not have
    return replace(together, missing=together.missing + older - (parts[0].records if uses_lake else 0))


def _log_records(sources: _Sources, wanted: ReplayRange, bounds: LogBounds) -> DataFrame:
    places = sources.places
    start = max(wanted.start or 0, bounds.first)
    if wanted.start_ms is not None:
        log = LogFile(places.log)
        start = max(start, log.before(wanted.start_ms))
        log.close()
    end = max(start, wanted.end)
    source = sources.spark.read.format(FORMAT).options(path=str(places.log), start=str(start), end=str(end))
    return source.load()


_LAKE_ORDER = ("life", "log_id", "partition", "offset")


def _lake_records(sources: _Sources, wanted: ReplayRange, bounds: LogBounds) -> DataFrame:
    """What the log does not have. Offsets are those of this life of the log; a time may lie in an earlier one."""
    spark, place = sources.spark, lake_place(sources.settings, sources.places)
    if not DeltaTable(spark, place).exists():
        raise ReplayError(f"{place} has no lake")
    log_id = _log_id(sources.places)
    is_this = F.col("log_id") == log_id
    rows = spark.read.format("delta").load(place)
    rows = rows.where(~is_this | (F.col("offset") < min(bounds.first, wanted.end)))
    if wanted.start is not None or wanted.end_offset is not None:
        rows = rows.where(is_this & (F.col("offset") >= (wanted.start or 0)))
    rows = rows.withColumns({"error": F.lit(None).cast("string"), "span": F.lit(1).cast("long")})
    within = rows.where(_within(wanted))
    lives = (
        within.where(matches_filter(wanted.topic_filter))
        .groupBy("log_id")
        .agg(F.min("accepted_at").alias("at"))
    )
    order = [row["log_id"] for row in lives.orderBy("at", "log_id").collect()]
    ranks: list[Column] = [F.when(F.col("log_id") == one, F.lit(rank)) for rank, one in enumerate(order)]
    return within.withColumn("life", F.coalesce(*ranks, F.lit(len(order))))


def _within(wanted: ReplayRange) -> Column:
    return accepted_within(_moment(wanted.start_ms), _moment(wanted.end_ms))


def _take(
    records: DataFrame,
    wanted: ReplayRange,
    now: datetime,
    into: Path | None,
    ordered_by: tuple[str, ...] = (),
) -> Chosen:
    judged = judged_records(records.where(_within(wanted)), wanted.topic_filter, now)
    if into is None:
        return _counted(judged)
    if not ordered_by:
        told = Observation("replay")
        _write(judged.observe(told, *measures()), into)
        return Chosen(**told.get)
    # What is sorted is read twice, and would be counted twice. The lake is counted without its payloads.
    _write(judged, into, ordered_by)
    return _counted(judged)


def _counted(judged: DataFrame) -> Chosen:
    row = judged.agg(*measures()).first()
    assert row is not None
    return Chosen(**row.asDict())


def _write(judged: DataFrame, into: Path, ordered_by: tuple[str, ...] = ()) -> None:
    chosen = judged.where("chosen")
    if ordered_by:
        chosen = chosen.orderBy(*ordered_by)
    staged(chosen).write.mode("overwrite").options(**_WRITING).parquet(str(into))


def _sum(parts: list[Chosen]) -> Chosen:
    def total(name: str) -> int:
        return sum(getattr(part, name) for part in parts)

    oldest = [part.oldest_ms for part in parts if part.oldest_ms is not None]
    newest = [part.newest_ms for part in parts if part.newest_ms is not None]
    counted = ("records", "chosen", "expired", "payload_bytes", "missing", "unreadable", "from_lake")
    return Chosen(
        **{name: total(name) for name in counted},
        oldest_ms=min(oldest, default=None),
        newest_ms=max(newest, default=None),
    )


def _bounds(places: Places) -> LogBounds:
    log = LogFile(places.log)
    try:
        return log.bounds() or LogBounds(0, 0)
    finally:
        log.close()


def _begins_before(places: Places, wanted: ReplayRange, bounds: LogBounds) -> bool:
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


def _has_lake(settings: PipelineSettings, places: Places) -> bool:
    place = lake_place(settings, places)
    return "lake" in settings.queries if is_s3(settings) else (Path(place) / "_delta_log").is_dir()


def _log_id(places: Places) -> int:
    broker = BrokerFile(places.broker)
    try:
        return broker.log_identity()
    finally:
        broker.close()


def _moment(time_ms: int | None) -> datetime | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1_000, UTC)


def sync_tree(folder: Path) -> None:
    """All of it is on the disk when this returns."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
