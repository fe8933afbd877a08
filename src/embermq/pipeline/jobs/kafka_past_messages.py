"""Past messages of a log in Kafka and of its lake. Positions are those of `model.position`."""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from embermq.model.position import OFFSET_END, offset_of, partition_of, position_of
from embermq.pipeline.jobs.kafka_ranges import read_ranges
from embermq.pipeline.jobs.past_range import PartitionRange
from embermq.pipeline.jobs.past_records import rows_of_lake
from embermq.pipeline.jobs.replay_values import ReplayRange
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.places import Places
from embermq.pipeline.schema import record_schema
from embermq.pipeline.settings import PipelineSettings
from embermq.pipeline.sources.kafka_positions import KafkaPositions
from embermq.pipeline.sources.log_file import CLOCK_MS
from embermq.pipeline.transforms.kafka_records import records_from_kafka


class KafkaPastMessages:
    """See `PastMessages`. Raises KafkaLogError."""

    def __init__(self, settings: PipelineSettings, kafka: KafkaLog, places: Places) -> None:
        self._settings = settings
        self._places = places
        self.positions = KafkaPositions(kafka)
        self.bounds = self.positions.bounds()

    @property
    def log_end(self) -> int:
        newest = max(self.bounds)
        return position_of(newest, self.bounds[newest].end)

    def look(self) -> bool:
        before, self.bounds = self.bounds, self.positions.bounds()
        return any(self.bounds[number].first != found.first for number, found in before.items())

    def begins_before(self, wanted: ReplayRange) -> bool:
        if wanted.start is not None:
            return self.let_go(wanted) > 0
        if wanted.start_ms is None:
            return True
        there = {number: found.first for number, found in self.bounds.items() if found.first < found.end}
        oldest_ms = self.positions.accepted_ms(there)
        return oldest_ms is None or wanted.start_ms < oldest_ms

    def let_go(self, wanted: ReplayRange) -> int:
        gone = self._gone(wanted)
        return sum(end - start for start, end in gone.values())

    def in_log(self, spark: SparkSession, wanted: ReplayRange) -> DataFrame:
        kafka = self.positions.kafka
        ends = self._ends(wanted)
        begin = self._begins(wanted, ends)
        # One partition after the other, so that the tasks, and the files that they write, are in the log's order.
        parts = [
            records_from_kafka(rows, kafka.application_prefix)
            for number in sorted(self.bounds)
            if (rows := read_ranges(spark, kafka, kafka.log_topic, begin, {number: ends[number]})) is not None
        ]
        return reduce(DataFrame.union, parts) if parts else _nothing(spark)

    def in_lake(self, spark: SparkSession, wanted: ReplayRange) -> DataFrame:
        gone = (
            (F.col("partition") == number) & (F.col("offset") >= start) & (F.col("offset") < end)
            for number, (start, end) in self._gone(wanted).items()
        )
        is_gone = reduce(Column.__or__, gone)
        log_id = self.positions.archive_id()
        return rows_of_lake(spark, self._settings, self._places, wanted, log_id=log_id, is_gone=is_gone)

    def ranges(self, wanted: ReplayRange, first: Mapping[int, int]) -> tuple[PartitionRange, ...]:
        """What it is of each partition, of which nothing is kept before its `first`."""
        ends = self._ends(wanted)
        return tuple(
            PartitionRange(
                partition=number,
                start=min(max(at, _within(number, wanted.start or 0)), end),
                end=end,
                slot=self.positions.kafka.slot,
            )
            for number, at, end in ((number, first[number], ends[number]) for number in sorted(ends))
        )

    def close(self) -> None:
        self.positions.close()

    def _begins(self, wanted: ReplayRange, ends: Mapping[int, int]) -> dict[int, int]:
        start = wanted.start or 0
        found = {number: max(bounds.first, _within(number, start)) for number, bounds in self.bounds.items()}
        if wanted.start_ms is None:
            return found
        # Kafka finds by the time of its record, which the clock of the broker made.
        since = self.positions.offsets_since(wanted.start_ms - CLOCK_MS, ends)
        return {number: max(at, since[number]) for number, at in found.items()}

    def _ends(self, wanted: ReplayRange) -> dict[int, int]:
        return {number: min(found.end, _within(number, wanted.end)) for number, found in self.bounds.items()}

    def _gone(self, wanted: ReplayRange) -> dict[int, tuple[int, int]]:
        """What the range has of each partition that the log has not: first offset and end."""
        found: dict[int, tuple[int, int]] = {}
        for number, bounds in self.bounds.items():
            end = min(bounds.first, _within(number, wanted.end))
            found[number] = min(_within(number, wanted.start or 0), end), end
        return found


def _nothing(spark: SparkSession) -> DataFrame:
    """Without a process in Python, as `createDataFrame` would have."""
    columns = (F.lit(None).cast(one.dataType).alias(one.name) for one in record_schema())
    return spark.range(0).select(*columns)


def _within(partition: int, position: int) -> int:
    """How much of a partition stands before a position."""
    if partition == partition_of(position):
        return offset_of(position)
    return 0 if partition > partition_of(position) else OFFSET_END
