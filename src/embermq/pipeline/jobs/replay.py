"""replay, first part: Spark chooses messages of the lake and of the log, and keeps them in files, in their order.

What was chosen stays as it is, whatever is published, removed from the log or merged in the lake meanwhile: a replay
into the range that it reads ends. The second part, `replay_feed`, needs no Spark any more.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from embermq.pipeline.batch import batch_session, spark_failures
from embermq.pipeline.errors import ReplayError
from embermq.pipeline.jobs.past_messages import PastMessages, past_messages
from embermq.pipeline.jobs.past_records import LAKE_ORDER, accepted_in, has_lake, in_lives
from embermq.pipeline.jobs.replay_feed import LAKE_PART, LOG_PART
from embermq.pipeline.jobs.replay_values import Chosen, ReplayRange
from embermq.pipeline.places import Places
from embermq.pipeline.settings import PipelineSettings, slot_of_pipeline
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
    settings: Sequence[PipelineSettings],
    places: Places,
    wanted: Sequence[ReplayRange],
    *,
    into: Path | None,
    tasks: int,
) -> Chosen:
    """Of each log, by its settings, write what is wanted into the folder `into`, one log after the other; None: count
    it alone. Raises ReplayError, PipelineError."""
    began = time.monotonic()
    with ExitStack() as opened, tempfile.TemporaryDirectory(prefix="embermq-") as work:
        logs = [opened.enter_context(closing(past_messages(each, places))) for each in settings]
        there = has_lake(settings[0], places)
        in_lake = [there and past.begins_before(each) for past, each in zip(logs, wanted, strict=True)]
        with (
            spark_failures(lambda reason: ReplayError(f"the messages cannot be read: {reason}")),
            batch_session(settings[0], tasks, Path(work), lake=any(in_lake), spill=into) as spark,
        ):
            spark.dataSource.register(MessageLogSource)
            parts = []
            for number, past in enumerate(logs):
                slot, part = slot_of_pipeline(settings[number]), into and into / f"{number:02}"
                parts.append(_choose(spark, past, wanted[number], part, slot, uses_lake=in_lake[number]))
    found = _sum(parts)
    return replace(found, seconds=round(time.monotonic() - began, 3))


def _choose(
    spark: SparkSession,
    past: PastMessages,
    wanted: ReplayRange,
    into: Path | None,
    slot: int | None,
    *,
    uses_lake: bool,
) -> Chosen:
    """Of one log."""
    now, of_slot = datetime.now(UTC), F.lit(slot).cast("int")
    for last in (*[False] * (TRIES - 1), True):
        parts: list[Chosen] = []
        if uses_lake:
            lake = in_lives(past.in_lake(spark, wanted).withColumn("slot", of_slot), wanted.topic_filter)
            found = _take(lake, wanted, now, into and into / LAKE_PART, ordered_by=LAKE_ORDER)
            parts.append(replace(found, from_lake=found.chosen))
        own = past.in_log(spark, wanted).where(~is_copy())  # those are replayed where they come from
        parts.append(_take(own.withColumn("slot", of_slot), wanted, now, into and into / LOG_PART))
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
