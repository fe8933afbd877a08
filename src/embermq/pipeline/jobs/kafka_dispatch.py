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
    SHOWN,
    Carrying,
    Leaders,
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
LOGS_S = 2.0
"""Between two looks which application logs are there."""
RESTORED_S = 60.0
"""So long what the query dies of may be that a log was missing which is there again."""
PROGRESS_S = 10.0
"""Between two looks whether anything gets done."""

_HELD_UP = "what is on its way into an application log is held up"
_ANEW = "dispatch begins anew: a topic takes other records now than it knows"
_LEADERS = "dispatch begins anew"
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
        self._restored_s: dict[str, float] = {}
        """When a log was made again, by the clock of this process."""
        self._look_s = 0.0
        self._runs = 0
        self._standstill = Standstill()
        self._leaders = Leaders()
        self._carrying = Carrying()
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
        """The newest that a run has reached; what some log still lacks is not told of."""
        self._carrying.reached(positions)
        complete = self._carrying.complete()
        if fresh := {number: at for number, at in complete.items() if self.done.get(number) != at}:
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
        begin = self._carrying.begin(found, log.log_id())
        self._at = dict(begin)
        return begin

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
        narrow = self._limits.begin()
        rows = dispatched(
            records,
            kafka.application_prefix,
            kafka.rejected_topic,
            gone,
            narrow,
            carried=self._carrying.carried(),
        )
        options = self._producer_options(min(narrow.values(), default=BATCH_BYTES))
        writer = rows.writeStream.format("kafka").options(**options).outputMode("update")
        if self.mode == "realtime":
            self._check_slots(spark)
            options = {"realTime": f"{self._batch_s} seconds"}
            return writer.trigger(**options)
        return writer.trigger(processingTime=f"{self.settings.dispatch_trigger_ms} milliseconds")

    def _producer_options(self, taken_bytes: int) -> dict[str, str]:
        """In each partition records go one after the other, and none is left out: so what one run has sent and what the
        next one repeats is in order together, too. `taken_bytes`: each topic takes a batch of so many."""
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
            # A larger one that a topic refuses would be divided into batches of this size again, without end.
            "batch.size": str(min(BATCH_BYTES, taken_bytes)),
            "max.request.size": str(REQUEST_BYTES_MAX),
            "buffer.memory": str(max(settings.producer_bytes_max, kafka.record_bytes_max + BATCH_BYTES)),
        }
        return kafka.spark_options() | {f"kafka.{name}": value for name, value in own.items()}

    def start(self, spark: SparkSession) -> StreamingQuery:
        self._runs += 1
        self._standstill.begin()
        self._ends = {}
        self._look_after_logs()
        begin = self._begin()
        self.publish(begin)
        self._query = self._started(spark, begin)
        return self._query

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
        # Before it says so: a log that has got something and is deleted then is known to have been there.
        looks = has_done or time.monotonic() >= self._look_s
        if looks:
            self._look_after_logs()
            self._look_at_progress()
        if found is not None and has_done:
            ends, records, duration_ms = found
            self._ends = ends
            self._at |= ends
            self._standstill.went_on()
            self._leaders.went_on()
            self.publish(ends)
            self.last_batch = LastBatch(records, duration_ms, time.time_ns() // 1_000_000)
            self._records += records
            self.totals = {**self.totals, "records": self._records}
        if looks and self._limits.have_changed():
            raise PipelineError(_ANEW)

    def begins_anew(self) -> bool:
        """Whether batches get another length. What the batch that is ended has carried comes again; readers know it."""
        settings, before = self.settings, self._batch_s
        has_rest = time.monotonic() - self._busy_s > settings.rest_after_s
        self._batch_s = settings.rest_batch_s if has_rest else settings.realtime_batch_s
        return self.mode == "realtime" and self._batch_s != before

    def _look_after_logs(self) -> None:
        """A log that was there and is not: what a producer holds for it waits, and the end of the batch with it. Made
        again it takes that; one that nobody wants any more stays away."""
        self._look_s = time.monotonic() + LOGS_S
        # Asked for before the list: what is made after it may be in that, and is not missing.
        self._there |= self._lately()
        try:
            there = self._application_logs()
            missing = self._there - there
            if len(missing) > 1:
                missing -= self._restore_missing()
            for topic in missing:
                if self.kafka.topics.restore(topic) is None:
                    self._restored(topic)
            self._there = there
        except KafkaLogError as error:
            log.warning("which application logs are there: %s", error)
            return
        self._limits.look_at_new(there)

    def _lately(self) -> set[str]:
        """Logs that no look may have seen."""
        try:
            return set(self.kafka.topics.lately())
        except KafkaLogError as error:
            log.debug("the broker does not say which logs it has made: %s", error)
            return set()

    def _restore_missing(self) -> set[str]:
        """Where one log is gone others may be, and each would hold up a run of its own."""
        try:
            restored = set(self.kafka.topics.restore_missing())
        except KafkaLogError as error:
            log.info("whether other application logs are missing is not known: %s", error)
            return set()
        self._restored(*restored)
        return restored

    def _restored(self, *topics: str) -> None:
        now_s = time.monotonic()
        self._restored_s = {
            one: at_s for one, at_s in self._restored_s.items() if now_s - at_s < RESTORED_S
        } | dict.fromkeys(topics, now_s)
        for topic in topics:
            log.warning("the application log %s was missing and is there again", topic)

    def _look_at_progress(self) -> None:
        """A producer never gives up. What it holds for a log that is gone, or cannot send for whatever reason, the next
        run rejects, or carries."""
        now_s = time.monotonic()
        if now_s < self._standstill.look_s:
            return
        try:
            without_leader = self.kafka.positions.without_leader(
                self.kafka.positions.kafka.application_prefix
            )
            bounds = self.kafka.positions.bounds()
        except KafkaLogError:
            self._standstill.begin()
            self._leaders.begin()
            return
        finally:
            self._standstill.look_s = now_s + PROGRESS_S
        self._count_rejected()
        waiting = behind(bounds, self._at)
        batch_s = self._batch_s if self.mode == "realtime" else 0
        self._look_at_leaders(now_s, without_leader, waiting, batch_s)
        if held_s := self._standstill.too_long_s(now_s, waiting, batch_s, HELD_UP_S):
            raise PipelineError(
                f"nothing of {self.kafka.positions.kafka.log_topic} got done in {held_s:.0f} s beyond {waiting}, "
                f"although there is more: {_HELD_UP}"
            )

    def _count_rejected(self) -> None:
        """As many as the topic for them has had."""
        with suppress(KafkaLogError):
            kept = self.kafka.positions.bounds(self.kafka.positions.kafka.rejected_topic)
            self.totals = {**self.totals, "rejected": sum(one.end for one in kept.values())}

    def _look_at_leaders(
        self, now_s: float, without: Mapping[str, int], waiting: Mapping[int, int], batch_s: float
    ) -> None:
        """A log without a leader is left out by the next run when it holds up this one, and carried to again when it
        has one."""
        left_out = self._carrying.left_out
        if back := left_out - without.keys():
            self._carrying.leave_out(left_out - back)
            raise PipelineError(f"{_LEADERS} for {', '.join(sorted(back)[:SHOWN])}: it can be written again")
        if held := set(self._leaders.to_leave_out(now_s, without, waiting, batch_s)) - left_out:
            self._carrying.leave_out(left_out | held)
            raise PipelineError(
                f"{_LEADERS} without application logs that have no leader in Kafka, {told_of(without)}: what is for "
                "them waits, the others are served. The server with their copy has to come back"
            )

    def _application_logs(self) -> set[str]:
        prefix = self.kafka.positions.kafka.application_prefix
        return {topic for topic in self.kafka.positions.topics() if topic.startswith(prefix)}

    def heal(self, reason: str) -> bool:
        """A record for an application log that is not there ends the query: have the log made, or reject the record. So
        does one that is too large for its log: have the log take it, or reject the record."""
        topic = missing_log(reason, self.kafka.positions.kafka.application_prefix)
        if topic is not None:
            return self._heal_missing(topic)
        if REFUSED in reason or _HELD_UP in reason:
            return self._limits.heal(self._application_logs())
        return _LEADERS in reason

    def _heal_missing(self, topic: str) -> bool:
        if topic in self.kafka.positions.topics():
            return time.monotonic() - self._restored_s.get(topic, -RESTORED_S) < RESTORED_S
        generation = self.kafka.topics.restore(topic)
        if generation is None:
            self._restored(topic)
        else:
            ends = {number: found.end for number, found in self.kafka.positions.bounds().items()}
            self._gone[topic] = generation, ends
            log.warning("the application log %s is gone: what is still for it is rejected", topic)
        self._restore_missing()
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
