"""compact: what the lake's query does by itself, once and by hand, while the pipeline is down."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

from msgspec import Struct
from pyspark.sql import SparkSession

from embermq.pipeline.batch import batch_session, spark_failures
from embermq.pipeline.errors import DriverLockError, LakeError
from embermq.pipeline.jobs.lake_upkeep import Progress, Tidied, oldest_day, tidy
from embermq.pipeline.places import Places, lock_driver
from embermq.pipeline.settings import PipelineSettings, is_s3
from embermq.pipeline.sinks.delta_table import DeltaTable, Merged
from embermq.pipeline.sinks.lake import Lake, lake_place


class CompactionReport(Struct, frozen=True, kw_only=True):
    """What came of it. `deleted` are records older than the lake keeps; of a dry run, those that would be deleted,
    and nothing is merged."""

    dry_run: bool
    deleted: int
    files_merged: int
    files_made: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    seconds: float


def compact(
    settings: PipelineSettings, places: Places, *, tasks: int, dry: bool, progress: Progress
) -> CompactionReport:
    """Hold the lake, and start Spark. A dry run holds nothing. Raises PipelineError."""
    with ExitStack() as stack:
        if not dry:
            stack.enter_context(_held(places))
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="embermq-")))
        place = lake_place(settings, places)
        stack.enter_context(
            spark_failures(lambda reason: LakeError(f"{place} was not put in order: {reason}"))
        )
        session = batch_session(
            settings,
            tasks,
            work,
            lake=True,
            spill=places.work / "compacting",
            elsewhere=is_s3(settings),
        )
        return Compaction(settings, places, progress).run(stack.enter_context(session), dry=dry)


class Compaction:
    """One run of `embermq pipeline compact` on one lake."""

    def __init__(self, settings: PipelineSettings, places: Places, progress: Progress) -> None:
        self._settings = settings
        self._places = places
        self._progress = progress
        self._place = lake_place(settings, places)

    def run(self, spark: SparkSession, *, dry: bool) -> CompactionReport:
        """Merge small files, delete what is too old, and say what was done or, `dry`, would be. Raises
        LakeError."""
        began = time.monotonic()
        table = DeltaTable(spark, self._place)
        if not table.exists():
            raise LakeError(f"{self._place} has no lake; --data-dir, or pipeline.lake_dir, says where it is")
        before, today = table.size(), datetime.now(UTC).date()
        oldest = oldest_day(self._settings.lake_retention_days, today)
        would_go = table.older_than(oldest) if oldest and dry else 0
        done = Tidied(Merged(0, 0), would_go) if dry else self._tidy(spark, today)
        after = table.size()
        return CompactionReport(
            dry_run=dry,
            deleted=done.deleted,
            files_merged=done.merged.files_removed,
            files_made=done.merged.files_added,
            files_before=before.files,
            files_after=after.files,
            bytes_before=before.data_bytes,
            bytes_after=after.data_bytes,
            seconds=round(time.monotonic() - began, 3),
        )

    def _tidy(self, spark: SparkSession, today: date) -> Tidied:
        lake = Lake(self._place, self._places)
        try:
            lake.take(spark)
            done = tidy(lake.table, self._settings.lake_retention_days, today, self._progress)
            lake.note_version()
        finally:
            lake.close()
        return done


@contextmanager
def _held(places: Places) -> Iterator[None]:
    """No pipeline runs meanwhile. Raises LakeError."""
    try:
        lock = lock_driver(places)
    except DriverLockError as error:
        raise LakeError(f"the lake is kept in order by the pipeline that runs: {error}") from error
    try:
        yield
    finally:
        os.close(lock)
