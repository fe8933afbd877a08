"""lake/: Parquet files by date and first topic level, each position once, no half file ever visible.

A batch is written by Spark below `_staging/` (readers skip names that begin with an underscore), made durable, then
listed in lake.db together with the progress: that transaction is the commit. Only then are the files renamed into
place. After a crash, what is listed is renamed, what is not listed is deleted.
"""

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from embermq.pipeline.schema import PARTITION
from embermq.pipeline.sinks.lake_files import sync
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.pipeline.transforms.batch_values import is_missing, is_new

READER = "lake"
STAGING = "_staging"
OTHER_ROOT = "__other__"
_BATCH = "batch"
_PARTITION_BY = ("date", "root")


class Covered(Struct, frozen=True):
    """A batch: positions [first, end), records that are good among them, positions that the log did not hold any more,
    and how far each partition has come."""

    first: int
    end: int
    good: int
    missing: int
    moved: Mapping[int | None, int]


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
        found = self._stage(
            rows,
            is_new({PARTITION: done}),
            [F.min("offset").alias("first"), F.max(F.col("offset") + F.col("span")).alias("next")],
        )
        if found["next"] is None:
            return 0
        first, end = int(found["first"]), int(found["next"])
        self._take(rows.sparkSession, Covered(first, end, found["good"], found["missing"], {None: end}))
        return end - first

    def write_partitions(self, rows: DataFrame) -> int:
        """The same of a log in Kafka: each partition goes on from its own position; all of them have begun."""
        done = self.file.positions()
        ends = [
            F.max(F.when(F.col("partition") == number, F.col("offset") + F.col("span"))).alias(str(number))
            for number in done
        ]
        found = self._stage(rows, is_new(done), ends)
        moved: dict[int | None, int] = {
            number: found[str(number)] for number in done if found[str(number)] is not None
        }
        if not moved:
            return 0
        # Positions only grow, so that their sums name a batch as the offsets of the one partition do.
        first = sum(done.values())
        end = sum(moved.get(number, offset) for number, offset in done.items())
        self._take(rows.sparkSession, Covered(first, end, found["good"], found["missing"], moved))
        return end - first

    def _stage(self, rows: DataFrame, is_wanted: Column, ends: list[Column]) -> dict[str, Any]:
        """Write what is new into `_staging/batch`; what was seen of it."""
        seen = Observation("lake")
        good = F.count_if(F.col("error").isNull()).alias("good")
        gone = F.coalesce(F.sum(F.when(is_missing(), F.col("span"))), F.lit(0)).alias("missing")
        counted = rows.where(is_wanted).observe(seen, good, gone, *ends)
        batch = self._staging / _BATCH
        shutil.rmtree(batch, ignore_errors=True)
        _write_parquet(counted.where(F.col("error").isNull()).drop("error", "span"), batch)
        return seen.get

    def _take(self, spark: SparkSession, covered: "Covered") -> None:
        batch = self._bound_roots(spark, self._staging / _BATCH)
        self._commit(batch, covered)
        self._publish()
        shutil.rmtree(batch, ignore_errors=True)

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

    def _commit(self, batch: Path, covered: "Covered") -> None:
        first, end = covered.first, covered.end
        pending: list[tuple[str, str]] = []
        numbers: Counter[Path] = Counter()
        for file in sorted(batch.glob("date=*/root=*/*.parquet")):
            place = file.parent.relative_to(batch)
            name = f"part-{first}-{end}-{numbers[place]}.parquet"
            numbers[place] += 1
            sync(file)
            pending.append((str(file.relative_to(self._staging)), str(place / name)))
        # From the files up to the lake: a file that is listed is found again, also after a power loss.
        leaves = {file.parent for file in batch.glob("date=*/root=*/*.parquet")}
        dates = {leaf.parent for leaf in leaves}
        for directory in (*leaves, *dates, batch, self._staging, self.directory):
            sync(directory)
        with self.file.transaction() as connection:
            connection.executemany("INSERT INTO lake_pending VALUES (?, ?)", pending)
            self.file.count(
                records=end - first,
                entries=covered.good,
                rejected=end - first - covered.good - covered.missing,
                missing=covered.missing,
                files=len(pending),
            )
            for partition, offset in covered.moved.items():
                self.file.move_to(offset, partition)

    def _publish(self) -> None:
        """Rename what is committed into place; may be repeated. Inside a transaction, which keeps a compaction out."""
        with self.file.transaction() as connection:
            pending = connection.execute("SELECT staged, published FROM lake_pending").fetchall()
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
                sync(directory)
            connection.execute("DELETE FROM lake_pending")


def _write_parquet(rows: DataFrame, directory: Path) -> None:
    rows.write.partitionBy(*_PARTITION_BY).mode("overwrite").parquet(str(directory))
