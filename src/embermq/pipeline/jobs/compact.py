"""compact: the small files of a directory of the lake become few, in Spark jobs of many directories each.

What is merged is hard-linked below `_compacting/in/bin=<n>/`, which Spark reads with `bin` as a column and writes as
one file a bin. Nothing of the lake changes before the records of a new file were counted and its directory changes
places with the one that has it.
"""

import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from embermq.pipeline.batch import batch_session
from embermq.pipeline.errors import CompactionError
from embermq.pipeline.places import Places
from embermq.pipeline.settings import PipelineSettings
from embermq.pipeline.sinks.lake_files import ChangedMeanwhile, FileMerge, LakeDirectory, Made, merges

JOB_BYTES_MAX = 1 << 30
JOB_FILES_MAX = 20_000
"""Of one Spark job; a directory is never divided between two."""

Progress = Callable[[int, int], None]
"""Files that are dealt with, and how many there are."""
OpenSession = Callable[[], SparkSession]


class CompactionTerms(Struct, frozen=True, kw_only=True):
    """`older_than_ns`: files written later (Unix, nanoseconds) are left as they are. `tasks` at a time, 0
    for one a core."""

    target_bytes: int
    older_than_ns: int
    tasks: int = 0
    dry: bool = False


class SkippedDirectory(Struct, frozen=True):
    """A directory that was left as it is, and why."""

    directory: str
    reason: str


class CompactionReport(Struct, frozen=True, kw_only=True):
    """What came of it. Of a dry run `files_made` and `bytes_before` are what the first round would do."""

    dry_run: bool
    directories: int
    files_merged: int
    files_made: int
    records: int
    bytes_before: int
    bytes_after: int
    refusals: tuple[SkippedDirectory, ...]
    seconds: float


def compact(
    settings: PipelineSettings, places: Places, terms: CompactionTerms, progress: Progress
) -> CompactionReport:
    """Hold the lake, and start Spark when there is something to do. Raises CompactionError, OtherVersionError."""
    lake = LakeDirectory(places.lake, places.lake_ledger)
    with ExitStack() as stack:
        if not terms.dry:
            stack.enter_context(lake.held())
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="embermq-")))

        def open_session() -> SparkSession:
            return stack.enter_context(batch_session(settings, terms.tasks, work, lake.spill))

        return Compaction(lake, terms, progress).run(open_session)


class Compaction:
    """One run; call `run` once, with the lake held."""

    def __init__(self, lake: LakeDirectory, terms: CompactionTerms, progress: Progress) -> None:
        self._lake = lake
        self._terms = terms
        self._progress = progress
        self._refused: dict[Path, str] = {}
        self._changed: set[Path] = set()
        self._merged = self._made = self._records = 0
        self._bytes_before = self._bytes_after = 0

    def run(self, open_session: OpenSession) -> CompactionReport:
        """Until nothing is left that is worth it; Spark is started when there is something. Raises CompactionError."""
        began = time.monotonic()
        spark: SparkSession | None = None
        done = 0
        while plan := self._plan():
            if self._terms.dry:
                self._note_plan(plan)
                break
            if spark is None:
                spark = open_session()
            total = done + sum(len(merge.files) for merge in plan)
            for job in _jobs(plan):
                self._merge(spark, job)
                done += sum(len(merge.files) for merge in job)
                self._progress(done, total)
        return CompactionReport(
            dry_run=self._terms.dry,
            directories=len(self._changed),
            files_merged=self._merged,
            files_made=self._made,
            records=self._records,
            bytes_before=self._bytes_before,
            bytes_after=self._bytes_after,
            refusals=tuple(
                SkippedDirectory(str(path.relative_to(self._lake.lake)), reason)
                for path, reason in sorted(self._refused.items())
            ),
            seconds=round(time.monotonic() - began, 3),
        )

    def _plan(self) -> list[FileMerge]:
        found: list[FileMerge] = []
        for directory in self._lake.directories():
            if directory in self._refused:
                continue
            try:
                found += merges(directory, self._terms.target_bytes, self._terms.older_than_ns)
            except FileNotFoundError:
                continue  # somebody has removed a day
            except ChangedMeanwhile as error:
                self._refused[directory] = str(error)
        return found

    def _note_plan(self, plan: list[FileMerge]) -> None:
        self._changed |= {merge.directory for merge in plan}
        self._merged = sum(len(merge.files) for merge in plan)
        self._made = len(plan)
        self._bytes_before = sum(merge.size for merge in plan)

    def _merge(self, spark: SparkSession, job: list[FileMerge]) -> None:
        """One Spark job, then one directory after the other."""
        self._lake.clear()
        source, target = self._lake.work / "in", self._lake.work / "out"
        rows: dict[int, int] = {}
        for number, merge in enumerate(job):
            found = self._link(merge, source / f"bin={number}")
            if found is not None:
                rows[number] = found
        if not rows:
            return
        _write(spark, source, target, len(rows))
        made: dict[Path, list[tuple[Made, int]]] = defaultdict(list)
        for number, count in rows.items():
            merge = job[number]
            made[merge.directory].append((Made(merge, _only_file(target / f"bin={number}", count)), count))
        for directory, files in made.items():
            if directory not in self._refused:
                self._swap(directory, files)

    def _link(self, merge: FileMerge, folder: Path) -> int | None:
        """Give the files of a merge a second name; how many records they have. None when it is refused."""
        folder.mkdir(parents=True)
        rows = 0
        for number, file in enumerate(merge.files):
            name = folder / f"{number}.parquet"
            try:
                os.link(merge.directory / file.name, name)
                rows += pq.read_metadata(name).num_rows
            except (OSError, pa.ArrowException) as error:
                self._refused[merge.directory] = f"{file.name}: {' '.join(str(error).split())}"
                shutil.rmtree(folder)
                return None
        return rows

    def _swap(self, directory: Path, files: list[tuple[Made, int]]) -> None:
        sizes = [made.path.stat().st_size for made, _ in files]
        try:
            self._lake.swap(directory, [made for made, _ in files])
        except (ChangedMeanwhile, PermissionError) as error:
            self._refused[directory] = str(error)
            return
        self._changed.add(directory)
        self._made += len(files)
        self._bytes_after += sum(sizes)
        for made, count in files:
            self._merged += len(made.merge.files)
            self._records += count
            self._bytes_before += made.merge.size


def _jobs(plan: list[FileMerge]) -> Iterator[list[FileMerge]]:
    """Whole directories, as many as one Spark job takes."""
    by_directory: dict[Path, list[FileMerge]] = defaultdict(list)
    for merge in plan:
        by_directory[merge.directory].append(merge)
    job: list[FileMerge] = []
    for group in by_directory.values():
        together = [*job, *group]
        if job and (
            sum(merge.size for merge in together) > JOB_BYTES_MAX
            or sum(len(merge.files) for merge in together) > JOB_FILES_MAX
        ):
            yield job
            together = group
        job = together
    if job:
        yield job


def _write(spark: SparkSession, source: Path, target: Path, bins: int) -> None:
    """One file a bin, in the order of the log. Columns that only newer files have are null in rows of older ones."""
    try:
        rows = spark.read.option("mergeSchema", "true").parquet(str(source))
        tasks = min(bins, spark.sparkContext.defaultParallelism)
        ordered = rows.repartition(tasks, "bin").sortWithinPartitions("bin", "partition", "offset")
        ordered.write.partitionBy("bin").parquet(str(target))
    except PySparkException as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CompactionError(f"Spark could not merge files of {source.parent.parent}: {reason}") from error


def _only_file(folder: Path, rows: int) -> Path:
    """What was written for one merge, with as many records as went in."""
    files = list(folder.glob("*.parquet"))
    found = sum(pq.read_metadata(file).num_rows for file in files)
    if len(files) != 1 or found != rows:
        raise CompactionError(
            f"{folder}: {len(files)} files with {found} records were made of {rows} records; nothing was changed"
        )
    return files[0]
