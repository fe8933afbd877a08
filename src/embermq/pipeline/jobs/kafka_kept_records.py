"""The records of a range of a log in Kafka and its lake, without their payloads, kept in files of a job."""

from pathlib import Path

from msgspec.structs import replace
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from embermq.pipeline.jobs.kafka_past_messages import KafkaPastMessages
from embermq.pipeline.jobs.past_range import PartitionRange, PastRange
from embermq.pipeline.jobs.past_records import accepted_in
from embermq.pipeline.jobs.replay_values import ReplayRange
from embermq.pipeline.transforms.audit import audited_records
from embermq.pipeline.transforms.servers_audit import position_column

TRIES = 3
"""The log may let go of records while they are read: then the lake has them."""


class KafkaKeptRecords:
    """Those of the present log; the lake gives what the log has let go of."""

    def __init__(
        self, spark: SparkSession, past: KafkaPastMessages, *, wanted: PastRange, work: Path, has_lake: bool
    ) -> None:
        self._spark = spark
        self._past = past
        self._folder = str(work / "records")
        self._has_lake = has_lake
        # From the first position on, not from the oldest message: those of earlier lives of the log are not asked for.
        self._wanted = ReplayRange(
            topic_filter="#",
            log_end=past.log_end,
            start=wanted.start or 0,
            start_ms=wanted.start_ms,
            end_offset=wanted.end,
            end_ms=wanted.end_ms,
        )

    def keep(self) -> tuple[PartitionRange, ...]:
        """Read what is there now; returns which positions. Raises KafkaLogError, ReplayError."""
        wanted, past = self._wanted, self._past
        for last in (*[False] * (TRIES - 1), True):
            first = {number: found.first for number, found in past.bounds.items()}
            kept = past.in_log(self._spark, wanted).where(accepted_in(wanted))
            if self._has_lake:
                in_lake = past.in_lake(self._spark, replace(wanted, start_ms=None, end_ms=None))
                kept = kept.unionByName(in_lake.where(accepted_in(wanted)), allowMissingColumns=True)
                for row in in_lake.groupBy("partition").agg(F.min("offset").alias("first")).collect():
                    first[row["partition"]] = row["first"]
            records = self._by_client(audited_records(kept, self._is_before(), position_column()))
            records.write.mode("overwrite").parquet(self._folder)
            if not past.look() or last:
                break
        return past.ranges(wanted, first)

    def read(self) -> DataFrame:
        """What was kept: see `audited_records`; offsets are positions."""
        return self._spark.read.parquet(self._folder)

    def _by_client(self, records: DataFrame) -> DataFrame:
        """In Kafka a stamp has the name of the log: what a person looks for is behind the prefix."""
        prefix = self._past.positions.kafka.application_prefix

        def named(one: Column) -> Column:
            log = F.when(one["log"].startswith(prefix), F.substr(one["log"], F.lit(len(prefix) + 1)))
            return F.struct(F.coalesce(log, one["log"]).alias("log"), one["generation"].alias("generation"))

        return records.withColumn("stamps", F.transform("stamps", named))

    def _is_before(self) -> Column:
        """Whether the log has let go of a record."""
        found = F.lit(False)
        for number, one in self._past.bounds.items():
            found |= (F.col("partition") == number) & (F.col("offset") < one.first)
        return found
