"""dispatch on Kafka: message log -> application logs, in real-time mode or in micro-batches."""

import inspect
import logging
import re
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from embermq.pipeline.errors import KafkaLogError, PipelineError
from embermq.pipeline.jobs.kafka_job import KafkaJob, source_end
from embermq.pipeline.jobs.query_job import JobSetup
from embermq.pipeline.settings import PipelineSettings, is_local
from embermq.pipeline.sources.kafka_positions import Positions
from embermq.pipeline.transforms.kafka_dispatch import dispatched

REQUEST_BYTES_MAX = 1 << 28
"""Of one record that is sent: more than an MQTT message can have."""
REJECTED_SETTINGS = {"max.message.bytes": str(REQUEST_BYTES_MAX)}
"""Of the topic for rejected records, which takes every record that the message log has taken."""
DELIVERY_TIMEOUT_MS = 60_000
"""How long a record may be on its way before the query ends and begins anew: Kafka may be away for half of it."""

_LOOK_S = 0.1
"""Between two looks for task slots."""
LOGS_S = 2.0
"""Between two looks which application logs are there."""

_MISSING = (
    re.compile(r"Topic (\S+) not present in metadata"),
    re.compile(r"Expiring \d+ record\(s\) for (\S+)-\d+:"),
)

log = logging.getLogger(__name__)


class KafkaDispatch(KafkaJob):
    """Its progress is what it has published: a restart repeats what came after, and readers know repeats by `s`."""

    name = "dispatch"

    def __init__(self, setup: JobSetup) -> None:
        super().__init__(setup)
        self.mode = chosen_mode(self.settings)
        self._query: StreamingQuery | None = None
        self._gone: dict[str, tuple[int, Positions]] = {}
        self._there: set[str] = set()
        self._look_s = 0.0

    def confirmed(self) -> Positions:
        return self.kafka.positions.progress().get(self.name, {})

    def source_limits(self) -> dict[str, str]:
        return {} if self.mode == "realtime" else super().source_limits()  # real-time mode refuses limits

    def stream(self, spark: SparkSession, records: DataFrame) -> DataStreamWriter:
        kafka = self.kafka.positions.kafka
        self.kafka.positions.ensure_topic(kafka.rejected_topic, settings=REJECTED_SETTINGS)
        self._forget_passed()
        gone = {topic: generation for topic, (generation, _) in self._gone.items()}
        rows = dispatched(records, kafka.application_prefix, kafka.rejected_topic, gone)
        options = kafka.spark_options() | {
            "kafka.acks": "all",
            "kafka.linger.ms": str(self.settings.dispatch_linger_ms),
            "kafka.max.block.ms": str(self.settings.target_wait_ms),
            "kafka.delivery.timeout.ms": str(DELIVERY_TIMEOUT_MS),
            "kafka.max.request.size": str(REQUEST_BYTES_MAX),
            "kafka.buffer.memory": str(self.settings.producer_bytes_max),
        }
        writer = rows.writeStream.format("kafka").options(**options).outputMode("update")
        if self.mode == "realtime":
            self._check_slots(spark)
            options = {"realTime": f"{self.settings.realtime_batch_s} seconds"}
            return writer.trigger(**options)
        return writer.trigger(processingTime=f"{self.settings.dispatch_trigger_ms} milliseconds")

    def start(self, spark: SparkSession) -> StreamingQuery:
        self._query = super().start(spark)
        return self._query

    def upkeep(self, now_ms: int) -> None:
        found = (
            source_end(self._query, self.kafka.positions.kafka.log_topic) if self._query is not None else None
        )
        if found is not None and found[0] != self.done:
            ends, records, duration_ms = found
            self.publish(ends)
            self.covered(records, duration_ms)
        if time.monotonic() >= self._look_s:
            self._look_s = time.monotonic() + LOGS_S
            self._look_after_logs()

    def _look_after_logs(self) -> None:
        """A log that was there and is not: what a producer holds for it would wait for a minute; then the query dies.
        Made again it takes that; one that nobody wants any more stays away."""
        try:
            there = self._application_logs()
            for topic in self._there - there:
                if self.kafka.topics.restore(topic) is None:
                    log.warning("the application log %s was missing and is there again", topic)
            self._there = there
        except KafkaLogError as error:
            log.warning("which application logs are there: %s", error)

    def _application_logs(self) -> set[str]:
        prefix = self.kafka.positions.kafka.application_prefix
        return {topic for topic in self.kafka.positions.topics() if topic.startswith(prefix)}

    def heal(self, reason: str) -> bool:
        """A record for an application log that is not there ends the query: have the log made, or reject the record."""
        topic = missing_log(reason, self.kafka.positions.kafka.application_prefix)
        if topic is None or topic in self.kafka.positions.topics():
            return False
        generation = self.kafka.topics.restore(topic)
        if generation is None:
            log.warning("the application log %s was missing and is there again", topic)
        else:
            ends = {number: found.end for number, found in self.kafka.positions.bounds().items()}
            self._gone[topic] = generation, ends
            log.warning("the application log %s is gone: what is still for it is rejected", topic)
        return True

    def _forget_passed(self) -> None:
        """Stamping stops before a log goes: past the end that the log had then there is nothing for it."""
        for topic, (_, ends) in list(self._gone.items()):
            if all(self.done.get(partition, 0) >= end for partition, end in ends.items()):
                del self._gone[topic]

    def _check_slots(self, spark: SparkSession) -> None:
        """With a task slot too few, the partitions without one would be silent. Executors need a while to come."""
        partitions = len(self.kafka.positions.bounds())
        slots = spark.sparkContext.defaultParallelism
        deadline_s = time.monotonic() + self.settings.executors_wait_s
        while slots <= partitions and not is_local(self.settings.master) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
            slots = spark.sparkContext.defaultParallelism
        if slots <= partitions:
            raise PipelineError(
                f"Spark's real-time mode needs a task slot for each of the {partitions} partitions of "
                f"{self.kafka.positions.kafka.log_topic} at all times, and one more for the other queries; "
                f"{self.settings.master!r} has {slots}: give it more, or set pipeline.mode = 'microbatch'"
            )


def has_realtime() -> bool:
    """Whether this Spark has real-time mode."""
    return "realTime" in inspect.signature(DataStreamWriter.trigger).parameters


def chosen_mode(settings: PipelineSettings) -> str:
    """Real-time where Spark has it, unless it is not wanted. Raises PipelineError when it is wanted and not there."""
    if settings.mode == "realtime" and not has_realtime():
        raise PipelineError(
            "pipeline.mode = 'realtime': this PySpark has no real-time mode; 4.1 or newer has"
        )
    return "microbatch" if settings.mode == "microbatch" or not has_realtime() else "realtime"


def missing_log(reason: str, prefix: str) -> str | None:
    """The application log that Kafka's client could not find, by what it said; None when it died of something else."""
    for pattern in _MISSING:
        for name in pattern.findall(reason):
            if name.startswith(prefix):
                return str(name)
    return None
