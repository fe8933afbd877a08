"""A Delta Lake table: made, appended to, asked how far it is, and kept in order, all by SQL and the
DataFrame writer. EmberMQ's Python needs no library for it: Spark's jars do the work.

Each commit names the log, its partition and the first position behind what it holds (`txnAppId`, `txnVersion`). The
table keeps that for ever, so it says by itself how far it is. A commit takes effect only if the table is where its
writer knows it to be, so each position is once in it whoever else writes it, also at the same time.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Struct
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from embermq.pipeline.errors import LakeError

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
    """One table by its place, a folder or a URL. In a folder all that writes it is in one JVM."""

    def __init__(
        self, spark: SparkSession, place: str, shape: TableShape = OF_MESSAGES, run: str = ""
    ) -> None:
        """`run` is who writes: every commit carries it."""
        self._run = run
        if run:
            spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", run)
        self.spark = spark
        self._shape = shape
        self._place = place
        self._name = "delta.`{}`".format(place.replace("`", "``"))
        self._ends: dict[str, int] = {}
        """How far the table is, by the names of its transactions, -1 for no commit: as it was asked last, and by our
        own commits."""
        self._seen: tuple[str, int] | None = None
        """The table and its version at which all of that was so: while it is the newest one, nobody has moved any."""

    def create(self, columns: StructType) -> None:
        """Make the table when it is not there, and columns that it has not. Looking is cheaper than the statement, of
        which a start would wait for seconds."""
        found = self._snapshot()
        known = set(found.schema().fieldNames()) if int(found.version()) >= 0 else set()
        fields = ", ".join(
            f"`{field.name}` {field.dataType.simpleString()}" for field in columns if field.name not in known
        )
        if known:
            if fields:
                self._sql(f"ALTER TABLE {{}} ADD COLUMNS ({fields})")
            return
        shape, named = self._shape, dict(_PROPERTIES)
        if shape.measured:
            named["delta.dataSkippingStatsColumns"] = ",".join(shape.measured)
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in named.items())
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._name} ({fields}) USING delta "
            f"CLUSTER BY ({', '.join(shape.clustered_by)}) TBLPROPERTIES ({properties})"
        )

    def positions(self, log_id: int, partitions: Iterable[int]) -> dict[int, int]:
        """Below these the table holds all of that log; partitions without a commit are not there."""
        committed = self._snapshot().transactions()
        found: dict[int, int] = {}
        for number in partitions:
            name = self._transaction_name(log_id, number)
            self._ends[name] = _end_in(committed, name)
            if self._ends[name] >= 0:
                found[number] = self._ends[name]
        return found

    def version(self) -> int:
        """The number of the newest commit."""
        return int(self._snapshot().version())

    def read(self) -> DataFrame:
        """Its rows, as they are now."""
        return self.spark.read.format("delta").load(self._place)

    def exists(self) -> bool:
        """Whether there is a table at its place."""
        return int(self._snapshot().version()) >= 0

    def size(self) -> TableSize:
        """How many files the newest state of the table has, and their bytes."""
        found = self._snapshot()
        return TableSize(int(found.numOfFiles()), int(found.sizeInBytes()))

    def append(self, rows: DataFrame, log_id: int, partition: int, end: int) -> None:
        """Add what comes of a partition below `end` in one commit. Raises LakeError, and adds nothing, when the table
        is not where `positions` and this writer's own commits have left it: then another one writes it too."""
        with self._transaction(log_id, partition, end) as (transaction, named):
            self._write(transaction, rows.coalesce(1), named)

    def append_file(self, file: Path | None, statistics: str, log_id: int, partition: int, end: int) -> None:
        """The same of rows in a Parquet file of this machine, which is copied into the table; None for no rows."""
        with self._transaction(log_id, partition, end) as (transaction, named):
            now_ms = time.time_ns() // 1_000_000
            version = {"appId": named["txnAppId"], "version": end, "lastUpdated": now_ms}
            actions: list[dict[str, object]] = [{"txn": version}]
            if file is not None:
                name = f"part-{uuid4()}.zstd.parquet"
                self._copy(file, name)
                added = {"path": name, "partitionValues": {}, "size": file.stat().st_size}
                said = {"modificationTime": now_ms, "dataChange": True, "stats": statistics}
                actions.append({"add": added | said})
            jvm = self._jvm
            decode = getattr(getattr(jvm.org.apache.spark.sql.delta.actions, "Action$"), "MODULE$").fromJson
            decoded = jvm.PythonUtils.toSeq([decode(msgspec.json.encode(one).decode()) for one in actions])
            user_metadata = jvm.scala.Option.apply(self._run)
            self._commit(transaction, decoded, user_metadata, jvm.PythonUtils.toScalaMap({}))

    def _copy(self, file: Path, name: str) -> None:
        java = self._jvm.org.apache.hadoop.fs
        place = java.Path(f"{self._place}/{name}")
        conf = self.spark._jsparkSession.sessionState().newHadoopConf()
        place.getFileSystem(conf).copyFromLocalFile(False, True, java.Path(f"file://{file}"), place)

    def _commit(self, transaction: Any, actions: Any, user_metadata: Any, tags: Any) -> None:
        none, append = self._jvm.scala.Option.empty(), self._jvm.org.apache.spark.sql.SaveMode.Append
        write = getattr(self._jvm.org.apache.spark.sql.delta, "DeltaOperations$Write")
        said = write(append, none, none, user_metadata, none, none, none, none, none)
        table, before = _state(transaction)
        was_seen, self._seen = self._seen == (table, before), None  # until it is known what has become of it
        version = int(transaction.commitIfNeeded(actions, said, tags).get())
        if (
            was_seen and version == before + 1
        ):  # with another's commit in between, that may have moved another name
            self._seen = table, version

    @contextmanager
    def _transaction(self, log_id: int, partition: int, end: int) -> Iterator[tuple[Any, dict[str, str]]]:
        """One of Delta's that moves the partition to `end`, and what the commit is to carry."""
        name = self._transaction_name(log_id, partition)
        known = self._ends.get(name, -1)  # as Delta says that there is none
        log, none = self._log(), self._jvm.scala.Option.empty()
        transaction = log.startTransaction(none, none)
        # Having been asked for it, Delta refuses the commit when another one has moved it meanwhile.
        if name in self._ends and self._seen == _state(transaction):
            transaction.readTxn().addOne(name)
            found = known
        else:  # Delta puts its whole log together for the answer, which costs more than the commit
            found = int(transaction.txnVersion(name))
            committed = transaction.snapshot().transactions()
            as_known = all(_end_in(committed, other) == end for other, end in self._ends.items())
            self._seen = _state(transaction) if as_known else None
        if found < 0 <= known:
            raise LakeError(
                f"{self._place}: the table was removed, or another one is in its place: it begins anew, with what the "
                "message log still has"
            )
        if found != known:
            raise LakeError(
                f"{self._place}: another driver has written up to {found}, where {known} was known"
            )
        # The rows may be of a session that was cloned before this table was named its run.
        named = {"txnAppId": name, "txnVersion": str(end), "userMetadata": self._run}
        try:
            yield transaction, named
        except Py4JJavaError as error:
            if "ConcurrentTransactionException" not in str(error.java_exception.getClass().getName()):
                raise
            raise LakeError(f"{self._place}: another driver has written behind {known} meanwhile") from error
        self._ends[name] = end

    def _write(self, transaction: Any, rows: DataFrame, named: dict[str, str]) -> None:
        """What the DataFrame writer does, in a transaction that has begun: the writer begins one of its own, which may
        see another position than whoever chose the rows."""
        jvm, session = self._jvm, self.spark._jsparkSession
        delta, none, to_map = (
            jvm.org.apache.spark.sql.delta,
            jvm.scala.Option.empty(),
            jvm.PythonUtils.toScalaMap,
        )
        append, nothing = jvm.org.apache.spark.sql.SaveMode.Append, jvm.PythonUtils.toSeq([])
        # A later version has more columns.
        options = delta.DeltaOptions(to_map({**named, "mergeSchema": "true"}), session.sessionState().conf())
        write = delta.commands.WriteIntoDelta(
            *(self._log(), append, options, nothing, to_map({}), rows._jdf, none, none, False)
        )
        data = write.writeAndReturnCommitData(transaction, session, none, False)
        self._commit(transaction, data.actions(), options.userMetadata(), data.stringTags())

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
        return self.spark.sql(statement.format(self._name)).collect()

    def _snapshot(self) -> Any:
        """The newest state of the table. There is no SQL for what transactions have noted in it."""
        none = self._jvm.scala.Option.empty()
        return self._log().update(False, none, none)

    def _log(self) -> Any:
        delta = self._jvm.org.apache.spark.sql.delta
        return delta.DeltaLog.forTable(self.spark._jsparkSession, self._place)

    @property
    def _jvm(self) -> Any:
        return self.spark._jvm

    def _transaction_name(self, log_id: int, partition: int) -> str:
        """The name under which the table notes the position of a partition, of one life of a log."""
        return f"{self._shape.writer};{log_id};{partition}"


def _state(transaction: Any) -> tuple[str, int]:
    """Which table a transaction has begun on, and at which version."""
    snapshot = transaction.snapshot()
    return str(snapshot.metadata().id()), int(snapshot.version())


def _end_in(committed: Any, name: str) -> int:
    """How far a transaction of that name is, in what a snapshot says of all."""
    found = committed.get(name)
    return int(found.get()) if found.isDefined() else -1
