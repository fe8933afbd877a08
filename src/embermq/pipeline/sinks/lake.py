"""lake/: Parquet files by date and first topic level, each position once, no half file ever visible.

A batch is written by Spark below `_staging/` (readers skip names that begin with an underscore), made durable, then
listed in lake.db together with the progress: that transaction is the commit. Only then are the files renamed into
place. After a crash, what is listed is renamed, what is not listed is deleted.
"""

import os
import shutil
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from embermq.pipeline.sinks.sink_file import SinkFile

READER = "lake"
STAGING = "_staging"
OTHER_ROOT = "__other__"
_PARTITION_BY = ("date", "root")


class Lake:
    """Writes a batch; the instance owns `lake/_staging/` and everything it publishes is final."""

    def __init__(self, directory: Path, ledger: Path, roots_max: int) -> None:
        self.directory = directory
        self.file = SinkFile(ledger, READER, (__package__ or "", "lake.sql"))
        self._roots_max = roots_max
        self._staging = directory / STAGING
        self._staging.mkdir(parents=True, exist_ok=True)
        self.recover()

    def recover(self) -> None:
        """Finish the renames that a crash interrupted and remove what was never committed."""
        self._publish()
        for leftover in self._staging.iterdir():
            shutil.rmtree(leftover)

    def write(self, rows: DataFrame) -> int:
        """Take what `lake_rows` gives; returns the number of log positions it covered."""
        done = self.file.position() or 0
        seen = Observation("lake")
        counted = rows.where(F.col("offset") >= done).observe(
            seen,
            F.min("offset").alias("first"),
            F.max(F.col("offset") + F.col("span")).alias("next"),
            F.count_if(F.col("error").isNull()).alias("good"),
        )
        batch = self._staging / "batch"
        shutil.rmtree(batch, ignore_errors=True)
        _write_parquet(counted.where(F.col("error").isNull()).drop("error", "span"), batch)
        found = seen.get
        if found["next"] is None:
            return 0
        batch = self._bound_roots(rows.sparkSession, batch)
        self._commit(batch, found["first"], found["next"], found["good"])
        self._publish()
        shutil.rmtree(batch, ignore_errors=True)
        return int(found["next"] - found["first"])

    def _bound_roots(self, spark: SparkSession, batch: Path) -> Path:
        """A flood of first levels must not become a flood of files: the smallest share one directory."""
        sizes: Counter[str] = Counter()
        for directory in batch.glob("date=*/root=*"):
            sizes[directory.name] += sum(file.stat().st_size for file in directory.glob("*.parquet"))
        if len(sizes) <= self._roots_max:
            return batch
        kept = [name for name, _ in sizes.most_common(self._roots_max)]
        bounded = self._staging / "bounded"
        shutil.rmtree(bounded, ignore_errors=True)
        surplus = [str(path) for path in batch.glob("date=*/root=*") if path.name not in kept]
        rows = (
            spark.read.option("basePath", str(batch)).parquet(*surplus).withColumn("root", F.lit(OTHER_ROOT))
        )
        _write_parquet(rows.coalesce(1), bounded)
        for path in batch.glob("date=*/root=*"):
            if path.name in kept:
                target = bounded / path.parent.name / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
        return bounded

    def _commit(self, batch: Path, first: int, end: int, good: int) -> None:
        pending: list[tuple[str, str]] = []
        numbers: Counter[Path] = Counter()
        for file in sorted(batch.glob("date=*/root=*/*.parquet")):
            place = file.parent.relative_to(batch)
            name = f"part-{first}-{end}-{numbers[place]}.parquet"
            numbers[place] += 1
            _sync(file)
            pending.append((str(file.relative_to(self._staging)), str(place / name)))
        # From the files up to the lake: a file that is listed is found again, also after a power loss.
        leaves = {file.parent for file in batch.glob("date=*/root=*/*.parquet")}
        dates = {leaf.parent for leaf in leaves}
        for directory in (*leaves, *dates, batch, self._staging, self.directory):
            _sync(directory)
        with self.file.transaction() as connection:
            connection.executemany("INSERT INTO lake_pending VALUES (?, ?)", pending)
            self.file.count(
                records=end - first, entries=good, rejected=end - first - good, files=len(pending)
            )
            self.file.move_to(end)

    def _publish(self) -> None:
        """Rename what is committed into place; may be repeated."""
        pending = self.file.connection.execute("SELECT staged, published FROM lake_pending").fetchall()
        if not pending:
            return
        changed: set[Path] = set()
        for staged, published in pending:
            source, target = self._staging / staged, self.directory / published
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
            changed |= {target.parent, target.parent.parent}
        for directory in (*changed, self.directory):
            _sync(directory)
        self.file.connection.execute("DELETE FROM lake_pending")


def _write_parquet(rows: DataFrame, directory: Path) -> None:
    rows.write.partitionBy(*_PARTITION_BY).mode("overwrite").parquet(str(directory))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
