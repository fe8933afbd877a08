"""archive, lake and traffic on a log in Kafka: micro-batches, each partition from the position that the sink has."""

import logging
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from embermq.pipeline.connector import lake_jars
from embermq.pipeline.jobs.bulk_parts import message_sinks
from embermq.pipeline.jobs.kafka_job import KafkaJob
from embermq.pipeline.jobs.lake_upkeep import LakeUpkeep
from embermq.pipeline.jobs.query_job import JobSetup
from embermq.pipeline.schema import Columns
from embermq.pipeline.sinks.lake import Lake, lake_place
from embermq.pipeline.sinks.message_store import MessageStoreSink
from embermq.pipeline.sinks.message_tasks import write_by_tasks
from embermq.pipeline.sinks.traffic_windows import WATERMARK_S, TrafficWindows
from embermq.pipeline.sources.kafka_positions import Positions
from embermq.pipeline.transforms.archive import stored_messages
from embermq.pipeline.transforms.kafka_receipts import traffic_events_from_kafka
from embermq.pipeline.transforms.kafka_records import records_from_kafka
from embermq.pipeline.transforms.lake import lake_rows

_MS_PER_HOUR = 3_600_000
_LOOK_MS = 500
"""How often Spark looks whether a full batch waits."""

log = logging.getLogger(__name__)


class KafkaSinkJob(KafkaJob):
    """A subclass has a sink that keeps a position for each partition, written together with the effect."""

    columns: Columns

    @property
    def trigger_ms(self) -> int:
        """A batch begins so long after the one before, or at once when a full one waits."""
        return self.settings.bulk_trigger_ms

    @abstractmethod
    def begin_at(self, begin: Positions) -> None:
        """Tell the sink where each partition starts; no effect for those that have started."""

    @abstractmethod
    def write(self, records: DataFrame) -> int:
        """Give the rows of `schema` their effect, exactly once; returns how many positions they covered."""

    @abstractmethod
    def keep_up(self, now_ms: int) -> None:
        """One bounded round of pruning."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """What the sink has counted."""

    def source_limits(self) -> dict[str, str]:
        limits = super().source_limits()
        if self.trigger_ms:
            most = limits["maxOffsetsPerTrigger"]
            limits |= {"minOffsetsPerTrigger": most, "maxTriggerDelay": f"{self.trigger_ms}ms"}
        return limits

    def read_from(self, begin: Positions) -> Positions:
        """One record earlier where there is one, which goes through the query first and which the sink skips as a
        repeat: so a query that has nothing to do shows that it works."""
        bounds = self.kafka.positions.bounds()
        return {number: max(bounds[number].first, at - 1) for number, at in begin.items()}

    def start(self, spark: SparkSession) -> StreamingQuery:
        with self._lock:
            self.recover()
        return super().start(spark)

    def recover(self) -> None:
        """What a sink has to finish of the life before."""

    def rows(self, records: DataFrame) -> DataFrame:
        """What the sink takes, of the columns of Spark's Kafka source."""
        return records_from_kafka(records, self.columns, self.kafka.positions.kafka.application_prefix)

    def stream(self, spark: SparkSession, records: DataFrame) -> DataStreamWriter:
        rows = self.rows(records)
        look_ms = min(self.trigger_ms, _LOOK_MS)
        return rows.writeStream.foreachBatch(self._batch).trigger(processingTime=f"{look_ms} milliseconds")

    def upkeep(self, now_ms: int) -> None:
        with self._lock:
            confirmed = self.confirmed()
            self.keep_up(now_ms)
            self.totals = self.counts()
        self.publish(confirmed)

    def _begin(self) -> Positions:
        begin = super()._begin()
        with self._lock:
            self.begin_at(begin)
        return begin

    def _batch(self, rows: DataFrame, _: int) -> None:
        with self._lock:
            began = time.monotonic()
            self._begin_new_partitions()
            records = self.write(rows)
            self.covered(records, round((time.monotonic() - began) * 1000))

    def _begin_new_partitions(self) -> None:
        """Spark finds partitions that are added while it runs; those are read from their beginning."""
        known = self.confirmed()
        bounds = self.kafka.positions.bounds()
        if new := {number: found.first for number, found in bounds.items() if number not in known}:
            self.begin_at(new)


class KafkaArchive(KafkaSinkJob):
    """Log -> message store, unique by partition and offset."""

    name = "archive"
    columns = "all"

    def __init__(self, setup: JobSetup) -> None:
        super().__init__(setup)
        self._open = message_sinks(self.settings, self.places, self.log_id)
        self._sinks: dict[int, MessageStoreSink] = {}

    def log_id(self) -> int:
        """Which log the rows are of: a topic that was made anew is another one."""
        return self.kafka.positions.archive_id()

    def recover(self) -> None:
        for number in self.kafka.positions.bounds():
            self._sink(number).open()

    def confirmed(self) -> Positions:
        found = {number: sink.file.position() for number, sink in self._sinks.items()}
        return {number: offset for number, offset in found.items() if offset is not None}

    def begin_at(self, begin: Positions) -> None:
        for number, offset in begin.items():
            self._sink(number).begin_at(offset)

    def counts(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for sink in self._sinks.values():
            found.update(sink.file.counts())
        return dict(found)

    def write(self, records: DataFrame) -> int:
        sinks = self._sinks.values()
        covered = write_by_tasks(
            stored_messages(records),
            {number: sink.task_writer() for number, sink in self._sinks.items()},
            side_by_side=all(sink.side_by_side for sink in sinks),
        )
        for sink in sinks:
            sink.follow()
        return covered

    def keep_up(self, now_ms: int) -> None:
        older_than_ms = now_ms - self.settings.retention_hours * _MS_PER_HOUR
        for sink in self._sinks.values():
            sink.prune(older_than_ms, self.settings.prune_rows_max)

    def _sink(self, number: int) -> MessageStoreSink:
        if number not in self._sinks:
            self._sinks[number] = self._open(number)
            self._sinks[number].open()
        return self._sinks[number]


class KafkaLake(KafkaSinkJob):
    """Log -> Delta Lake table."""

    name = "lake"
    columns = "all"

    def __init__(self, setup: JobSetup) -> None:
        super().__init__(setup)
        self._sink = Lake(lake_place(self.settings, self.places), self.places)
        self._upkeep = LakeUpkeep(self.settings.lake_retention_days)

    def start(self, spark: SparkSession) -> StreamingQuery:
        lake_jars(self.settings)  # says what is missing, and how to get it
        positions = self.kafka.positions
        with self._lock:
            self._sink.open(spark, positions.archive_id(), positions.bounds())
        return super().start(spark)

    def confirmed(self) -> Positions:
        return self._sink.positions()

    def begin_at(self, begin: Positions) -> None:
        self._sink.begin_at(begin)

    def counts(self) -> dict[str, int]:
        return self._sink.file.counts()

    def write(self, records: DataFrame) -> int:
        rows = lake_rows(records).persist(StorageLevel.DISK_ONLY)
        try:
            return self._sink.write(rows)
        finally:
            rows.unpersist()

    def keep_up(self, now_ms: int) -> None:
        self._upkeep.look(self._sink, now_ms)


class KafkaTraffic(KafkaSinkJob):
    """Log and delivery receipts -> windows of rates, sizes and latencies."""

    name = "traffic"
    columns = "traffic"

    def __init__(self, setup: JobSetup) -> None:
        super().__init__(setup)
        settings = self.settings
        self._sink = TrafficWindows(self.places.traffic, settings.traffic_window_s, WATERMARK_S)

    def confirmed(self) -> Positions:
        return self._sink.file.positions()

    def begin_at(self, begin: Positions) -> None:
        for number, offset in begin.items():
            self._sink.file.begin_at(offset, number)

    def counts(self) -> dict[str, int]:
        return self._sink.file.counts()

    def beside(self) -> Mapping[str, Positions]:
        """The receipts. The broker makes their topic; without it latencies are missing, and nothing else."""
        kafka = self.kafka.positions.kafka
        if kafka.receipts_topic not in self.kafka.positions.topics():
            log.warning("%s is not there: no latencies until the query starts anew", kafka.receipts_topic)
            return {}
        bounds = self.kafka.positions.bounds(kafka.receipts_topic)
        with self._lock:
            begin = self._sink.begin_receipts({number: (at.first, at.end) for number, at in bounds.items()})
        return {kafka.receipts_topic: begin}

    def rows(self, records: DataFrame) -> DataFrame:
        kafka = self.kafka.positions.kafka
        return traffic_events_from_kafka(records, kafka.application_prefix, kafka.receipts_topic)

    def write(self, records: DataFrame) -> int:
        return self._sink.write_partitions(records)

    def keep_up(self, now_ms: int) -> None:
        older_than_ms = now_ms - self.settings.retention_hours * _MS_PER_HOUR
        self._sink.prune(older_than_ms, self.settings.prune_rows_max)
