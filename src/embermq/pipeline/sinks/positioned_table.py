"""A Delta Lake table in which each position is once, and beside it a file that says how far it is.

The commit of a batch is Delta's, and carries the position. The file is written after it, so that it is never ahead; the
broker's retention, status and backup go by it. A start asks the table, so a lost checkpoint or a lost file repeats and
skips nothing, and a table that somebody has removed is filled anew from what the log still has. The slots of a cluster
have one together.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from uuid import uuid4

from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from embermq.pipeline.schema import PARTITION
from embermq.pipeline.sinks.delta_table import DeltaTable, TableShape
from embermq.pipeline.sinks.held_table import HeldTable, Noted
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.pipeline.transforms.batch_values import is_missing, is_new, is_rejected


class Covered(Struct, frozen=True):
    """What a batch has of one partition: positions [first, end), good records among them, and of these late ones;
    records that could not be understood, positions that the log did not hold any more, bytes of payload."""

    partition: int
    first: int
    end: int
    good: int
    late: int
    rejected: int
    missing: int
    data_bytes: int
    newest_ms: int | None


class PositionedTable(ABC):
    """Writes batches. `open` comes first, and again after a failure: then the table says what has been committed."""

    def __init__(
        self, place: str, shape: TableShape, columns: StructType, *, file: SinkFile, lock: Path, shared: bool
    ) -> None:
        self._held = HeldTable(place, shape, lock, shared=shared)
        self._columns = columns
        self.file = file
        self._log_id = 0
        self._is_embedded = True
        self._done: dict[int, int] = {}
        self.commits = 0
        """So many this process has made; each adds a file."""

    @abstractmethod
    def _made(self, rows: DataFrame) -> DataFrame:
        """What the table gets of the rows of one partition: all of its columns but `log_id`."""

    def _is_late(self) -> Column:
        """Whether a row came late."""
        return F.lit(False)

    @property
    def table(self) -> DeltaTable:
        """The table; it is open."""
        return self._held.table

    def open(self, spark: SparkSession, log_id: int, partitions: Iterable[int] | None = None) -> None:
        """Take the table and see how far it is. `partitions` are those of a log in Kafka, None for the embedded one.
        Raises LakeError."""
        self.take(spark)
        self._log_id, self._is_embedded = log_id, partitions is None
        numbers = (PARTITION,) if partitions is None else partitions
        self._done = self.table.positions(log_id, numbers)
        with self.file.transaction() as connection:
            reader = self.file.reader
            connection.execute(
                "DELETE FROM progress WHERE reader = ?1 OR reader GLOB ?2", (reader, f"{reader};*")
            )
            self._note(self._done)

    def take(self, spark: SparkSession) -> None:
        """Be the only one who writes the table, and make it when it is not there. Raises LakeError."""
        asked = "SELECT version, boot, run FROM lake_version LEFT JOIN lake_run USING (id)"
        row = self.file.connection.execute(asked).fetchone()
        run = uuid4().hex
        self._held.take(spark, Noted() if row is None else Noted(int(row[0]), str(row[1]), row[2] or ""), run)
        self._held.create(self._columns)
        with self.file.transaction() as connection:
            self._note({})  # what the run before has left is synced, before it is forgotten
            connection.execute("INSERT OR REPLACE INTO lake_run VALUES (1, ?)", (run,))

    def note_version(self) -> None:
        """The table was put in order: from now on a backup takes its newest state, whose files are kept."""
        with self.file.transaction():
            self._note({})

    def positions(self) -> dict[int, int]:
        """Below these everything is in the table; partitions that have not begun are not there."""
        return {number: at for number, at in self._done.items() if number >= 0}

    def begin_at(self, begin: Mapping[int, int]) -> None:
        """Say where partitions begin; no effect for those that have begun."""
        for number, offset in begin.items():
            self._done.setdefault(number, offset)
            self.file.begin_at(offset, self._key(number))

    def write(self, rows: DataFrame) -> int:
        """Take a batch; returns the number of log positions it covered.

        Whoever calls keeps the rows on disk meanwhile, never in memory: the end of each partition has to be known
        before the commit that it names.
        """
        new = rows.where(is_new(self._done))
        covered = self._covered(new)
        # All before the first is added: what is late is judged by the batches before.
        made = [self._made(new.where(F.col("partition") == F.lit(one.partition))) for one in covered]
        for part, one in zip(made, covered, strict=True):
            self._append(part, one)
        return sum(one.end - one.first for one in covered if one.partition >= 0)

    def close(self) -> None:
        """Let go of the table and the file."""
        self.file.close()
        self._held.close()

    def _covered(self, rows: DataFrame) -> list[Covered]:
        is_good = F.col("error").isNull()
        found = rows.groupBy("partition").agg(
            F.min("offset").alias("first"),
            F.max(F.col("offset") + F.col("span")).alias("end"),
            F.count_if(is_good).alias("good"),
            F.count_if(is_good & self._is_late()).alias("late"),
            F.coalesce(F.sum(F.when(is_rejected(), F.col("span"))), F.lit(0)).alias("rejected"),
            F.coalesce(F.sum(F.when(is_missing(), F.col("span"))), F.lit(0)).alias("missing"),
            F.coalesce(F.sum("payload_bytes"), F.lit(0)).alias("data_bytes"),
            F.max(F.unix_millis("accepted_at")).alias("newest_ms"),
        )
        return [Covered(**row.asDict()) for row in found.orderBy("partition").collect()]

    def _append(self, rows: DataFrame, one: Covered) -> None:
        made = rows.withColumn("log_id", F.lit(self._log_id).cast("bigint")).select(self._columns.names)
        self.table.append(made, self._log_id, one.partition, one.end)
        self._committed(one)

    def _committed(self, one: Covered) -> None:
        self._done[one.partition] = one.end
        self.commits += 1
        if one.partition < 0:  # of what stands beside the log
            return
        with self.file.transaction():
            self.file.count(
                records=one.good + one.rejected + one.missing,
                entries=one.good - one.late,
                late=one.late,
                rejected=one.rejected,
                missing=one.missing,
                bytes=one.data_bytes,
            )
            self._note({one.partition: one.end})

    def _note(self, positions: Mapping[int, int]) -> None:
        """Inside a transaction: the file says what the table says, and what is on disk."""
        noted = self._held.sync()
        for number, offset in positions.items():
            self.file.move_to(offset, self._key(number))
        synced = (noted.version, noted.boot)
        self.file.connection.execute("INSERT OR REPLACE INTO lake_version VALUES (1, ?, ?)", synced)

    def _key(self, partition: int) -> int | None:
        return None if self._is_embedded else partition
