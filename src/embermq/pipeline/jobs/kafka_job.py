"""What every query on the log in Kafka is: read from its progress, partition by partition, and publish that progress.

The progress is that of the effect, never that of a checkpoint. Checkpoints are made anew at each start: there is one
kind of start, a lost or torn one means nothing, and a new version of a query may be any other query.
"""

import json
import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from embermq.pipeline.errors import PipelineError
from embermq.pipeline.jobs.checkpoints import fresh_checkpoint
from embermq.pipeline.jobs.query_job import JobSetup, LastBatch, QueryJob
from embermq.pipeline.sources.kafka_positions import Positions
from embermq.pipeline.sources.lost_ends import begin_within

log = logging.getLogger(__name__)


class KafkaJob(QueryJob):
    """A subclass says what becomes of the records, and when their effect is complete."""

    def __init__(self, setup: JobSetup) -> None:
        if setup.kafka is None:
            raise PipelineError(f"{self.name} reads a log in Kafka, and there is none")
        self.settings = setup.settings
        self.places = setup.places
        self.kafka = setup.kafka
        self.last_batch: LastBatch | None = None
        self.missing = 0
        """Positions that were removed from the log before they were read."""
        self._published: Positions = {}
        self._lock = threading.Lock()

    @classmethod
    def create(cls, setup: JobSetup) -> Self:
        return cls(setup)

    @property
    def done(self) -> Positions:
        """Below these everything has had its effect, and everybody has been told."""
        return self._published

    def start(self, spark: SparkSession) -> StreamingQuery:
        begin = self._begin()
        self.publish(begin)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
        checkpoint = fresh_checkpoint(spark, self._checkpoints(), self.name)
        source = self._source(spark, self.read_from(begin))
        writer = self.stream(spark, source).queryName(self.name)
        return writer.option("checkpointLocation", checkpoint).start()

    def _checkpoints(self) -> str:
        """A place that several brokers have in common has a folder for each, or one would remove another's."""
        folder = self.settings.checkpoints_dir.rstrip("/")
        return f"{folder}/{self.kafka.positions.kafka.prefix}" if folder else str(self.places.checkpoints)

    @abstractmethod
    def confirmed(self) -> Positions:
        """What the effect is known to be complete up to; {} before the first."""

    @abstractmethod
    def stream(self, spark: SparkSession, records: DataFrame) -> DataStreamWriter:
        """From the columns of Spark's Kafka source to the sink, trigger included."""

    def read_from(self, begin: Positions) -> Positions:
        """Where the source begins, when the effect of everything below `begin` is complete."""
        return begin

    def source_limits(self) -> dict[str, str]:
        """How much one batch may read."""
        return {"maxOffsetsPerTrigger": str(self.settings.max_records_per_batch)}

    def beside(self) -> Mapping[str, Positions]:
        """Topics that are read with the log, and from where."""
        return {}

    def publish(self, positions: Mapping[int, int]) -> None:
        """Tell of progress that is new; never ahead of the effect."""
        fresh = {
            partition: offset
            for partition, offset in positions.items()
            if self._published.get(partition) != offset
        }
        if fresh:
            self.kafka.positions.publish(self.name, fresh)
            self._published |= fresh

    def lag(self) -> int:
        bounds = self.kafka.positions.bounds()
        return sum(
            max(0, found.end - self._published.get(number, found.first)) for number, found in bounds.items()
        )

    def quiesce(self, timeout_s: float) -> None:
        self._lock.acquire(timeout=timeout_s)

    def covered(self, records: int, duration_ms: int) -> None:
        """Note a batch that had its effect."""
        self.last_batch = LastBatch(records, duration_ms, time.time_ns() // 1_000_000)

    def _begin(self) -> Positions:
        """Where each partition is read from: its progress, or the oldest record that is there."""
        confirmed, bounds = self.confirmed(), self.kafka.positions.bounds()
        is_owed = not self.settings.has_waited
        topic = self.kafka.positions.kafka.log_topic
        begin = begin_within(self.name, topic, confirmed, bounds, is_owed=is_owed)
        if is_owed:
            self.missing += sum(max(0, at - confirmed.get(number, at)) for number, at in begin.items())
        return begin

    def _source(self, spark: SparkSession, begin: Mapping[int, int]) -> DataFrame:
        kafka = self.kafka.positions.kafka
        topics = {
            topic: {str(at): offset for at, offset in offsets.items()}
            for topic, offsets in {kafka.log_topic: begin, **self.beside()}.items()
        }
        options = kafka.spark_options() | {
            "subscribe": ",".join(topics),
            "includeHeaders": "true",
            "startingOffsets": json.dumps(topics),
            # The log is trimmed behind what every query has published: what is gone all the same is counted, not
            # a reason to stop for ever.
            "failOnDataLoss": "false",
        }
        return spark.readStream.format("kafka").options(**options, **self.source_limits()).load()


def source_end(query: StreamingQuery, topic: str) -> tuple[Positions, int, int] | None:
    """After the newest batch that Spark calls complete: positions, records, milliseconds; None before the first."""
    progress = query.lastProgress
    if progress is None or not progress["sources"]:
        return None
    told = progress["sources"][0]["endOffset"]
    offsets = json.loads(told) if isinstance(told, str) else told
    if not offsets:
        return None
    ends = {int(partition): int(offset) for partition, offset in offsets[topic].items()}
    return ends, int(progress["numInputRows"]), int(progress["batchDuration"])
