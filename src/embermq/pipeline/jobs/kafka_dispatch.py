"""dispatch on Kafka: message log -> application logs, in real-time mode or in micro-batches.

The progress is what is published, never that of a checkpoint. Checkpoints are made anew at each start: there is one
kind of start, a lost or torn one means nothing, and a new version of the query may be any other query.
"""

import inspect
import json
import logging
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from embermq.pipeline.errors import KafkaLogError, PipelineError
from embermq.pipeline.jobs.kafka_watch import (
    REFUSED,
    RecordLimits,
    Standstill,
    fresh_checkpoint,
    told_of,
)
from embermq.pipeline.jobs.query_job import JobSetup, LastBatch, QueryJob
from embermq.pipeline.log_look import behind
from embermq.pipeline.settings import PipelineSettings, is_local
from embermq.pipeline.sources.kafka_positions import Positions
from embermq.pipeline.sources.lost_ends import begin_within
from embermq.pipeline.transforms.kafka_dispatch import dispatched

REQUEST_BYTES_MAX = 1 << 28
"""Of one record that is sent: more than an MQTT message can have."""
LINGER_MS = 2
"""How long a record waits for company on its way into an application log. 0 is a little sooner, with several times as
many requests."""
REJECTED_SETTINGS = {
    "max.message.bytes": str(REQUEST_BYTES_MAX),
    "message.timestamp.type": "LogAppendTime",
}
"""Of the topic for rejected records, which takes every record that the message log has taken, whatever the clock here
says."""
NEVER_MS = 2_147_483_647
"""How long a record that the producer has taken may be on its way. One that it gave up could be followed by later ones
of the same partition, and would come behind them when it is repeated."""
METADATA_IDLE_MS = 60_000
"""A log that nothing has come for in that time is not asked for any more, whether it is there or not."""
BATCH_BYTES = 64 * 1024
"""Of one partition in one request, of which one is under way at a time."""
HELD_UP_S = 60.0
"""When nothing gets done for a batch and so long, although there is something to do and Kafka answers, the query begins
anew, with another producer."""

_LOOK_S = 0.1
"""Between two looks for task slots."""
RESTORED_S = 60.0
"""So long what the query dies of may be that a log was missing which is there again."""
PROGRESS_S = 10.0
"""Between two looks whether anything gets done."""

_HELD_UP = "what is on its way into an application log is held up"
_MISSING = re.compile(r"Topic (\S+) not present in metadata")

log = logging.getLogger(__name__)


class KafkaDispatch(QueryJob):
    """Its progress is what it has published: a restart repeats what came after, and readers know repeats by `s`."""

    name = "dispatch"

    def __init__(self, setup: JobSetup) -> None:
        assert setup.kafka is not None
        self.settings = setup.settings
        self.places = setup.places
        self.kafka = setup.kafka
        self.last_batch: LastBatch | None = None
        self.missing = 0
        """Positions that were removed from the log before they were read."""
        self.done: Positions = {}
        """Published: below these everything has had its effect."""
        self._lock = threading.Lock()
        self.mode = chosen_mode(self.settings)
        self._batch_s = self.settings.realtime_batch_s
        self._busy_s = time.monotonic()
        """When a batch had a record last."""
        self._query: StreamingQuery | None = None
        self._gone: dict[str, tuple[int, Positions]] = {}
        self._there: set[str] = set()
        self._restored_s = -RESTORED_S
        """When logs were made again, by the clock of this process."""
        self._runs = 0
        self._standstill = Standstill()
        self._ends: Positions = {}
        """Of the newest batch of this run that was seen."""
        self._at: Positions = {}
        """How far this run has come, wherever others have been."""
        self._records = 0
        self._limits = RecordLimits(setup.kafka.positions)
        self._is_owed = not self.settings.has_waited

    @classmethod
    def create(cls, setup: JobSetup) -> Self:
        return cls(setup)

    def publish(self, positions: Mapping[int, int]) -> None:
        """Tell of what is new in how far the run has come."""
        if fresh := {number: at for number, at in positions.items() if self.done.get(number) != at}:
            self.kafka.positions.publish(self.name, fresh)
            self.done |= fresh

    def quiesce(self, timeout_s: float) -> None:
        self._lock.acquire(timeout=timeout_s)

    def _begin(self) -> Positions:
        """Where each partition is read from: its progress, or the oldest record that is there."""
        log, is_owed = self.kafka.positions, self._is_owed
        done = log.progress().get(self.name, {})
        found = begin_within(self.name, log.kafka.log_topic, done, log.bounds(), is_owed=is_owed)
        if is_owed:
            self.missing += sum(max(0, at - done.get(number, at)) for number, at in found.items())
        self._is_owed = True  # somebody is there from now on, also when this query begins anew
        self._at = dict(found)
        return found

    def _source(self, spark: SparkSession, begin: Positions) -> DataFrame:
        kafka = self.kafka.positions.kafka
        options = kafka.spark_options() | {
            "subscribe": kafka.log_topic,
            "includeHeaders": "true",
            "startingOffsets": json.dumps({kafka.log_topic: {str(at): to for at, to in begin.items()}}),
            # The log is trimmed behind what every query has published: what is gone all the same is counted, not
            # a reason to stop for ever.
            "failOnDataLoss": "false",
        }
        if self.mode != "realtime":  # which refuses limits
            options["maxOffsetsPerTrigger"] = str(self.settings.max_records_per_batch)
        return spark.readStream.format("kafka").options(**options).load()

    def _checkpoints(self) -> str:
        """A place that several brokers have in common has a folder for each, or one would remove another's."""
        folder = self.settings.checkpoints_dir.rstrip("/")
        return f"{folder}/{self.kafka.positions.kafka.prefix}" if folder else str(self.places.checkpoints)

    def stream(self, spark: SparkSession, records: DataFrame) -> DataStreamWriter:
        kafka = self.kafka.positions.kafka
        self.kafka.positions.ensure_topic(kafka.rejected_topic, settings=REJECTED_SETTINGS)
        self._forget_passed()
        gone = {topic: generation for topic, (generation, _) in self._gone.items()}
        rows = dispatched(records, kafka.application_prefix, kafka.rejected_topic, gone)
        writer = rows.writeStream.format("kafka").options(**self._producer_options()).outputMode("update")
        if self.mode == "realtime":
            self._check_slots(spark)
            options = {"realTime": f"{self._batch_s} seconds"}
            return writer.trigger(**options)
        return writer.trigger(processingTime=f"{self.settings.dispatch_trigger_ms} milliseconds")

    def _producer_options(self) -> dict[str, str]:
        """In each partition records go one after the other, and none is left out: so what one run has sent and what the
        next one repeats is in order together, too."""
        kafka, settings = self.kafka.positions.kafka, self.settings
        own = {
            # Producers are kept by their options: each run has its own, and waits for nothing that another one holds.
            "client.id": f"{kafka.prefix}-dispatch-{self._runs}",
            "acks": "all",
            "enable.idempotence": "true",
            # With more under way the first batch for a partition that has no leader yet may be refused and the second
            # be taken. Then the first one is out of sequence for ever.
            "max.in.flight.requests.per.connection": "1",
            "delivery.timeout.ms": str(NEVER_MS),
            "max.block.ms": str(settings.target_wait_ms),
            "metadata.max.idle.ms": str(METADATA_IDLE_MS),
            "linger.ms": str(LINGER_MS),
            "batch.size": str(BATCH_BYTES),
            "max.request.size": str(REQUEST_BYTES_MAX),
            "buffer.memory": str(max(settings.producer_bytes_max, kafka.record_bytes_max + BATCH_BYTES)),
        }
        return kafka.spark_options() | {f"kafka.{name}": value for name, value in own.items()}

    def start(self, spark: SparkSession) -> StreamingQuery:
        self._runs += 1
        self._standstill.begin()
        self._ends = {}
        self._widen()
        begin = self._begin()
        self.publish(begin)
        self._query = self._started(spark, begin)
        return self._query

    def _widen(self) -> None:
        """Logs of a time when packets could be smaller take what they have to from now on: once one has refused a
        record, it has what comes behind that."""
        try:
            self._limits.heal(self._application_logs())
        except KafkaLogError as error:
            log.warning("whether application logs take the largest record is not known: %s", error)

    def _started(self, spark: SparkSession, begin: Positions) -> StreamingQuery:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
        checkpoint = fresh_checkpoint(spark, self._checkpoints(), self.name)
        writer = self.stream(spark, self._source(spark, begin)).queryName(self.name)
        return writer.option("checkpointLocation", checkpoint).start()

    def upkeep(self, now_ms: int) -> None:
        found = (
            source_end(self._query, self.kafka.positions.kafka.log_topic) if self._query is not None else None
        )
        has_done = found is not None and found[0] != self._ends
        if found is not None and found[1]:
            self._busy_s = time.monotonic()
        self._look_at_progress()
        if found is not None and has_done:
            ends, records, duration_ms = found
            self._ends = ends
            self._at |= ends
            self._standstill.went_on()
            self.publish(ends)
            self.last_batch = LastBatch(records, duration_ms, time.time_ns() // 1_000_000)
            self._records += records
            self.totals = {**self.totals, "records": self._records}

    def begins_anew(self) -> bool:
        """Whether batches get another length. What the batch that is ended has carried comes again; readers know it."""
        settings, before = self.settings, self._batch_s
        has_rest = time.monotonic() - self._busy_s > settings.rest_after_s
        self._batch_s = settings.rest_batch_s if has_rest else settings.realtime_batch_s
        return self.mode == "realtime" and self._batch_s != before

    def _look_at_progress(self) -> None:
        """A producer never gives up. What it holds for a log that is gone, or cannot send for whatever reason, the next
        run sends or rejects."""
        now_s = time.monotonic()
        if now_s < self._standstill.look_s:
            return
        try:
            self._look_for_missing()
            bounds = self.kafka.positions.bounds()
        except KafkaLogError as error:
            log.warning("whether dispatch goes on is not known: %s", error)
            self._standstill.begin()
            return
        finally:
            self._standstill.look_s = now_s + PROGRESS_S
        self._count_rejected()
        waiting = behind(bounds, self._at)
        batch_s = self._batch_s if self.mode == "realtime" else 0
        if held_s := self._standstill.too_long_s(now_s, waiting, batch_s, HELD_UP_S):
            raise PipelineError(
                f"nothing of {self.kafka.positions.kafka.log_topic} got done in {held_s:.0f} s beyond {waiting}, "
                f"although there is more: {_HELD_UP}{self._without_leader()}"
            )

    def _look_for_missing(self) -> None:
        """A log that was there and is not: what a producer holds for it waits, and the end of the batch with it. Made
        again it takes that; one that nobody wants any more stays away."""
        there = self._application_logs()
        for topic in self._there - there:
            self._restore(topic)
        self._there = there

    def _without_leader(self) -> str:
        """What nobody but who runs Kafka can mend."""
        positions = self.kafka.positions
        with suppress(KafkaLogError):
            if found := positions.without_leader(positions.kafka.application_prefix):
                return f"; without a leader in Kafka: {told_of(found)}, whose server has to come back"
        return ""

    def _count_rejected(self) -> None:
        """As many as the topic for them has had."""
        with suppress(KafkaLogError):
            kept = self.kafka.positions.bounds(self.kafka.positions.kafka.rejected_topic)
            self.totals = {**self.totals, "rejected": sum(one.end for one in kept.values())}

    def _application_logs(self) -> set[str]:
        prefix = self.kafka.positions.kafka.application_prefix
        return {topic for topic in self.kafka.positions.topics() if topic.startswith(prefix)}

    def heal(self, reason: str) -> bool:
        """A record for an application log that is not there ends the query: have the log made, or reject the record. So
        does one that is too large for its log: have the log take it."""
        topic = missing_log(reason, self.kafka.positions.kafka.application_prefix)
        if topic is not None:
            return self._heal_missing(topic)
        if REFUSED in reason or _HELD_UP in reason:
            return self._limits.heal(self._application_logs())
        if without_leader := self._without_leader():  # what cannot be sent has filled the memory for it
            log.error("dispatch waits%s", without_leader)
        return False

    def _heal_missing(self, topic: str) -> bool:
        if topic in self.kafka.positions.topics():
            return time.monotonic() - self._restored_s < RESTORED_S
        generation = self._restore(topic)
        if generation is not None:
            ends = {number: found.end for number, found in self.kafka.positions.bounds().items()}
            self._gone[topic] = generation, ends
            log.warning("the application log %s is gone: what is still for it is rejected", topic)
        return True

    def _restore(self, topic: str) -> int | None:
        """See `SessionTopics`. Where one log is gone others may be, and are made again with it."""
        generation = self.kafka.topics.restore(topic)
        if generation is None:
            self._restored_s = time.monotonic()
            log.warning("the application log %s was missing and is there again", topic)
        return generation

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
    return next((name for name in _MISSING.findall(reason) if name.startswith(prefix)), None)


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
