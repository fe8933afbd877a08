"""The records of a range of time of a log in Kafka and its lake, without their payloads, kept in files of a job."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from embermq.pipeline.jobs.kafka_ranges import read_ranges
from embermq.pipeline.jobs.past_range import PartitionRange, PastRange
from embermq.pipeline.jobs.past_records import has_lake
from embermq.pipeline.log_look import Bounds
from embermq.pipeline.places import Places
from embermq.pipeline.schema import record_schema
from embermq.pipeline.settings import PipelineSettings
from embermq.pipeline.sinks.delta_table import DeltaTable
from embermq.pipeline.sinks.lake import lake_place
from embermq.pipeline.sources.kafka_positions import KafkaPositions
from embermq.pipeline.sources.log_file import CLOCK_MS
from embermq.pipeline.transforms.audit import audited_records
from embermq.pipeline.transforms.kafka_records import records_from_kafka
from embermq.pipeline.transforms.replay import accepted_within

TRIES = 3
"""The log may let go of records while they are read: then the lake has them."""


class KafkaKeptRecords:
    """Those of the present log; the lake gives what the log has let go of."""

    def __init__(
        self,
        spark: SparkSession,
        settings: PipelineSettings,
        places: Places,
        positions: KafkaPositions,
        *,
        wanted: PastRange,
        work: Path,
    ) -> None:
        self._spark = spark
        self._positions = positions
        self._wanted = wanted
        self._folder = str(work / "records")
        place = lake_place(settings, places)
        has_one = has_lake(settings, places) and DeltaTable(spark, place).exists()
        self._lake = place if has_one else ""

    def keep(self) -> tuple[PartitionRange, ...]:
        """Read what is there now; returns which positions. Raises KafkaLogError."""
        ends = {number: found.end for number, found in self._positions.bounds().items()}
        in_lake = self._first_in_lake() if self._lake else {}
        for last in (*[False] * (TRIES - 1), True):
            bounds = self._positions.bounds()
            kept = self._within(self._in_log(bounds, ends))
            if self._lake:
                kept = kept.unionByName(self._within(self._in_lake(bounds, ends)), allowMissingColumns=True)
            records = self._by_client(audited_records(kept, _is_before(bounds)))
            records.write.mode("overwrite").parquet(self._folder)
            now = self._positions.bounds()
            if last or all(now[number].first == found.first for number, found in bounds.items()):
                break
        return tuple(
            PartitionRange(
                partition=number,
                start=min(bounds[number].first, in_lake.get(number, bounds[number].first)),
                end=end,
            )
            for number, end in ends.items()
        )

    def read(self) -> DataFrame:
        """What was kept: see `audited_records`."""
        return self._spark.read.parquet(self._folder)

    def _in_log(self, bounds: Mapping[int, Bounds], ends: Mapping[int, int]) -> DataFrame:
        begin = {number: min(bounds[number].first, end) for number, end in ends.items()}
        if self._wanted.start_ms is not None:
            # Kafka finds by the time of its record, which the clock of the broker made.
            since = self._positions.offsets_since(self._wanted.start_ms - CLOCK_MS, ends)
            begin = {number: max(at, since[number]) for number, at in begin.items()}
        kafka = self._positions.kafka
        rows = read_ranges(self._spark, kafka, kafka.log_topic, begin, ends)
        if rows is None:
            return self._spark.createDataFrame([], record_schema())
        return records_from_kafka(rows, kafka.application_prefix)

    def _by_client(self, records: DataFrame) -> DataFrame:
        """In Kafka a stamp has the name of the log: what a person looks for is behind the prefix."""
        prefix = self._positions.kafka.application_prefix

        def named(one: Column) -> Column:
            log = F.when(one["log"].startswith(prefix), F.substr(one["log"], F.lit(len(prefix) + 1)))
            return F.struct(F.coalesce(log, one["log"]).alias("log"), one["generation"].alias("generation"))

        return records.withColumn("stamps", F.transform("stamps", named))

    def _in_lake(self, bounds: Mapping[int, Bounds], ends: Mapping[int, int]) -> DataFrame:
        gone = F.lit(False)
        for number, found in bounds.items():
            gone |= (F.col("partition") == number) & (F.col("offset") < min(found.first, ends[number]))
        rows = self._of_this_log().where(gone)
        return rows.withColumns({"error": F.lit(None).cast("string"), "span": F.lit(1).cast("long")})

    def _first_in_lake(self) -> dict[int, int]:
        rows = self._of_this_log().groupBy("partition").agg(F.min("offset").alias("first")).collect()
        return {row["partition"]: row["first"] for row in rows}

    def _of_this_log(self) -> DataFrame:
        log_id = self._positions.archive_id()
        return self._spark.read.format("delta").load(self._lake).where(F.col("log_id") == log_id)

    def _within(self, records: DataFrame) -> DataFrame:
        return records.where(accepted_within(_moment(self._wanted.start_ms), _moment(self._wanted.end_ms)))


def _is_before(bounds: Mapping[int, Bounds]) -> Column:
    found = F.lit(False)
    for number, one in bounds.items():
        found |= (F.col("partition") == number) & (F.col("offset") < one.first)
    return found


def _moment(time_ms: int | None) -> datetime | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1_000, UTC)
