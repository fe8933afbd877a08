"""A Delta Lake table: made, appended to, asked how far it is, and kept in order, all by SQL and the
DataFrame writer. EmberMQ's Python needs no library for it: Spark's jars do the work.

Each commit names the log, its partition and the first position behind what it holds (`txnAppId`, `txnVersion`). The
table keeps that for ever, so it says by itself how far it is.
"""

from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

MERGED_BYTES = 128 * 1024 * 1024
"""Size of the files that compaction makes; smaller groups of files are merged again with what came since."""
_GROUP_BYTES = 4 * MERGED_BYTES
_PROPERTIES = {
    # So long a reader may go on with files that were merged or deleted meanwhile.
    "delta.deletedFileRetentionDuration": "interval 24 hours",
    "delta.logRetentionDuration": "interval 7 days",
}
OPTIONS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Tasks of the queries over the table's own log, and of listing its files: 50 and 10,000 by default.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # Or the table would get two commits a day by it.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # One group of files at a time, or compaction would need the memory of 15.
    "spark.databricks.delta.optimize.maxThreads": "1",
    "spark.databricks.delta.optimize.maxFileSize": str(MERGED_BYTES),
    # Above this size merged files are left alone. It is 100 GB by default: each compaction would write all of it anew.
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(MERGED_BYTES),
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize": str(_GROUP_BYTES),
}
"""Of the Spark session."""


class TableShape(Struct, frozen=True, kw_only=True):
    """What tables differ in. `writer` begins the names of its transactions; rows are removed by their `day`."""

    writer: str
    day: str
    clustered_by: tuple[str, ...]
    measured: tuple[str, ...] = ()
    """Readers skip files by these; of other columns no statistics are written. Empty: Delta's choice."""


OF_MESSAGES = TableShape(
    writer="embermq",
    day="date",
    clustered_by=("date", "root", "accepted_at"),
    measured=("log_id", "partition", "offset", "date", "root", "accepted_at", "topic", "publisher"),
)


class TableSize(Struct, frozen=True):
    """How many files the table is made of, and their bytes."""

    files: int
    data_bytes: int


class Merged(Struct, frozen=True):
    """What a compaction has done."""

    files_removed: int
    files_added: int


class DeltaTable:
    """One table by its place, a folder or a URL. All that writes it is in one JVM."""

    def __init__(
        self, spark: SparkSession, place: str, shape: TableShape = OF_MESSAGES, run: str = ""
    ) -> None:
        """`run` is who writes: every commit carries it."""
        self._run = run
        if run:
            spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", run)
        self._spark = spark
        self._shape = shape
        self._place = place
        self._name = "delta.`{}`".format(place.replace("`", "``"))

    def create(self, columns: StructType) -> None:
        """Make the table when it is not there. Looking is cheaper than the statement, of which a start would wait for
        seconds."""
        if self.exists():
            return
        fields = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in columns)
        shape, named = self._shape, dict(_PROPERTIES)
        if shape.measured:
            named["delta.dataSkippingStatsColumns"] = ",".join(shape.measured)
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in named.items())
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._name} ({fields}) USING delta "
            f"CLUSTER BY ({', '.join(shape.clustered_by)}) TBLPROPERTIES ({properties})"
        )

    def positions(self, log_id: int, partitions: Iterable[int]) -> dict[int, int]:
        """Below these the table holds all of that log; partitions without a commit are not there."""
        committed = self._snapshot().transactions()
        found = {number: committed.get(self._transaction(log_id, number)) for number in partitions}
        return {number: int(end.get()) for number, end in found.items() if end.isDefined()}

    def version(self) -> int:
        """The number of the newest commit."""
        return int(self._snapshot().version())

    def exists(self) -> bool:
        """Whether there is a table at its place."""
        return int(self._snapshot().version()) >= 0

    def size(self) -> TableSize:
        """How many files the newest state of the table has, and their bytes."""
        found = self._snapshot()
        return TableSize(int(found.numOfFiles()), int(found.sizeInBytes()))

    def append(self, rows: DataFrame, log_id: int, partition: int, end: int) -> None:
        """Add what comes of a partition below `end` in one commit. A commit whose `end` the table has already is
        passed over by Delta without a word: the caller leaves out what the table holds."""
        writer = rows.coalesce(1).write.format("delta").mode("append")
        named = writer.option("txnAppId", self._transaction(log_id, partition)).option("txnVersion", str(end))
        # The rows may be of a session that was cloned before this table was named its run.
        named = named.option("userMetadata", self._run)
        named.option("mergeSchema", "true").save(self._place)  # a later version has more columns

    def merge(self) -> Merged:
        """Make few files, sorted as the table is clustered, of the small ones; does nothing when nothing is to do."""
        (row,) = self._sql("OPTIMIZE {}")
        return Merged(row["metrics"]["numFilesRemoved"], row["metrics"]["numFilesAdded"])

    def delete_before(self, day: date) -> int:
        """Remove the rows of the days before that one (UTC); how many they were."""
        (row,) = self._sql(f"DELETE FROM {{}} WHERE {self._shape.day} < DATE'{day.isoformat()}'")
        return int(row[0])

    def older_than(self, day: date) -> int:
        """How many rows `delete_before` would remove."""
        (row,) = self._sql(f"SELECT COUNT(*) FROM {{}} WHERE {self._shape.day} < DATE'{day.isoformat()}'")
        return int(row[0])

    def vacuum(self) -> None:
        """Delete files that no reader of the last 24 hours needs, and those that a killed writer has left."""
        self._sql("VACUUM {}")

    def _sql(self, statement: str) -> Sequence[Any]:
        return self._spark.sql(statement.format(self._name)).collect()

    def _snapshot(self) -> Any:
        """The newest state of the table. There is no SQL for what transactions have noted in it."""
        jvm: Any = self._spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self._place)
        none = jvm.scala.Option.empty()
        return log.update(False, none, none)

    def _transaction(self, log_id: int, partition: int) -> str:
        """The name under which the table notes the position of a partition, of one life of a log."""
        return f"{self._shape.writer};{log_id};{partition}"
