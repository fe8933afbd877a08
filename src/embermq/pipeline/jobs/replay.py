"""replay, first part: Spark chooses messages of the lake and of the log, and keeps them in files, in their order.

What was chosen stays as it is, whatever is published, removed from the log or merged in the lake meanwhile: a replay
into the range that it reads ends. The second part, `replay_feed`, needs no Spark any more.
"""

import os
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace
from pyspark.sql import DataFrame, Observation, SparkSession

from embermq.pipeline.batch import batch_session, spark_failures
from embermq.pipeline.errors import ReplayError
from embermq.pipeline.jobs.past_messages import PastMessages, past_messages
from embermq.pipeline.jobs.past_records import LAKE_ORDER, accepted_in, has_lake, in_lives
from embermq.pipeline.jobs.replay_feed import LAKE_PART, LOG_PART
from embermq.pipeline.jobs.replay_values import Chosen, ReplayRange
from embermq.pipeline.places import Places
from embermq.pipeline.settings import PipelineSettings
from embermq.pipeline.sources.message_log import MessageLogSource
from embermq.pipeline.transforms.batch_values import is_copy
from embermq.pipeline.transforms.replay import (
    judged_records,
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
    with (
        closing(past_messages(settings, places)) as past,
        tempfile.TemporaryDirectory(prefix="embermq-") as work,
    ):
        uses_lake = past.begins_before(wanted) and has_lake(settings, places)
        with (
            spark_failures(lambda reason: ReplayError(f"the messages cannot be read: {reason}")),
            batch_session(settings, tasks, Path(work), lake=uses_lake, spill=into) as spark,
        ):
            spark.dataSource.register(MessageLogSource)
            found = _choose(spark, past, wanted, into, uses_lake=uses_lake)
    return replace(found, seconds=round(time.monotonic() - began, 3))


def _choose(
    spark: SparkSession, past: PastMessages, wanted: ReplayRange, into: Path | None, *, uses_lake: bool
) -> Chosen:
    now = datetime.now(UTC)
    for last in (*[False] * (TRIES - 1), True):
        parts: list[Chosen] = []
        if uses_lake:
            lake = in_lives(past.in_lake(spark, wanted), wanted.topic_filter)
            found = _take(lake, wanted, now, into and into / LAKE_PART, ordered_by=LAKE_ORDER)
            parts.append(replace(found, from_lake=found.chosen))
        own = past.in_log(spark, wanted).where(~is_copy())  # those are replayed where they come from
        parts.append(_take(own, wanted, now, into and into / LOG_PART))
        older = past.let_go(wanted)
        if not past.look() or last:
            break
    together = _sum(parts)
    if wanted.start is None:
        return together
    return replace(together, missing=together.missing + older - (parts[0].records if uses_lake else 0))


def _take(
    records: DataFrame,
    wanted: ReplayRange,
    now: datetime,
    into: Path | None,
    ordered_by: tuple[str, ...] = (),
) -> Chosen:
    judged = judged_records(records.where(accepted_in(wanted)), wanted.topic_filter, now)
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


def sync_tree(folder: Path) -> None:
    """All of it is on the disk when this returns."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
