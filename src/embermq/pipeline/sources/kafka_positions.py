"""What the driver asks Kafka, and tells it: bounds of the log, its age, the progress of the queries, topics.

No Spark in here, so that status can use it too. Every question has a deadline.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)
from msgspec import Struct

from embermq.formats.pipeline_progress import (
    LOG_HEADER,
    REPORT_KEY,
    TOPIC_SETTINGS,
    progress_key,
    read_progress,
)
from embermq.pipeline.errors import KafkaLogError
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.log_look import Bounds, ToldReport, told_report

Positions = dict[int, int]
"""Partition of the message log -> the next offset."""

_SILENT = {"log_level": 0, "reconnect.backoff.ms": 500, "reconnect.backoff.max.ms": 1_000}
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_POLL_S = 0.1
_READ_AT_ONCE = 1_000
_THERE_S = 10.0
_RECORD_LIMIT = "max.message.bytes"
_NO_LEADER_YET = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
_UNREACHED = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
_CIRCUMSTANCES = re.compile(r" \(after \d+ms in state .*\)$")
"""Behind a reason: other ones each time."""
_SETTINGS_TOPICS = 500
"""Whose settings are asked for in one request: each answers with some forty."""
_REFUSED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_CONFIG,
    }
)


class Published(Struct, frozen=True):
    """What the pipeline has said of itself: positions by query, and how a driver elsewhere is."""

    done: dict[str, Positions]
    report: ToldReport | None = None


class KafkaPositions:
    """One set of clients for one log. Calls from several threads are safe, but each waits for its own answer."""

    def __init__(self, kafka: KafkaLog, timeout_s: float = 10.0) -> None:
        self.kafka = kafka
        self._timeout_s = timeout_s
        self._options: dict[str, Any] = {**kafka.client_options(), **_SILENT, "error_cb": self._note}
        self._reason = ""
        """Why Kafka was not reached, the last time."""
        self._admin = AdminClient(self._options)
        self._making = Lock()
        self._producer: Producer | None = None
        self._log_id = ""
        self._listener: _PositionReader | None = None
        self._tails: dict[int, tuple[int, int]] = {}
        """Of partitions of the message log: an end, and how many offsets before it have no record."""

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._reason:
            self._reason = _CIRCUMSTANCES.sub("", error.str())

    def _why(self) -> str:
        """Why a question had no answer: it ends with "timed out" alone, also when Kafka lets nobody in."""
        self._admin.poll(0)
        return f" ({self._reason})" if self._reason else ""

    def _answered(self) -> None:
        self._reason = ""

    def partitions(self) -> int:
        """Of the message log. Raises KafkaLogError when there is none, or no answer."""
        return len(self._partitions(self.kafka.log_topic))

    def topics(self) -> set[str]:
        """Every topic that begins with the log's prefix. Raises KafkaLogError."""
        with self._told("the list of topics"):
            found = self._admin.list_topics(timeout=self._timeout_s).topics
        return {name for name in found if name.startswith(f"{self.kafka.prefix}.")}

    def without_leader(self, prefix: str) -> dict[str, int]:
        """Topics that begin so and have a partition that no server leads, each with the first of these. Raises
        KafkaLogError."""
        with self._told("who leads which partition"):
            found = self._admin.list_topics(timeout=self._timeout_s).topics
        return {
            name: partition.id
            for name, topic in found.items()
            if name.startswith(prefix)
            for partition in sorted(topic.partitions.values(), key=lambda one: one.id, reverse=True)
            if partition.leader < 0
        }

    def bounds(self, topic: str = "") -> dict[int, Bounds]:
        """Of each partition of the message log, or of another topic. Raises KafkaLogError."""
        topic = topic or self.kafka.log_topic
        numbers = self._partitions(topic)
        firsts = self._offsets(topic, numbers, _EARLIEST)
        ends = self._offsets(topic, numbers, _LATEST)
        unused = self._unused(firsts, ends) if topic == self.kafka.log_topic else {}
        return {number: Bounds(firsts[number], ends[number], unused.get(number, 0)) for number in numbers}

    def _unused(self, firsts: Positions, ends: Positions) -> Positions:
        """How many offsets there are behind the last record of each partition of the message log; looked for once for
        each end."""
        known = self._tails  # another thread may look meanwhile, and find other ends
        found = {
            number: known[number] for number, end in ends.items() if known.get(number, (-1, 0))[0] == end
        }
        left = {number: end for number, end in ends.items() if number not in found}
        back = 1
        while left:
            begin = {number: max(firsts[number], end - back) for number, end in left.items()}
            last: Positions = {}
            for record in self._read_all(self.kafka.log_topic, left, begin):
                number, offset = int(record.partition() or 0), int(record.offset() or 0)
                if offset < left[number]:
                    last[number] = offset + 1
            for number, at in begin.items():
                if number in last or at == firsts[number]:
                    found[number] = left[number], left.pop(number) - last.get(number, at)
            back *= 2
        self._tails = found
        return {number: unused for number, (_, unused) in found.items()}

    def offsets_since(self, unix_ms: int, ends: Mapping[int, int]) -> Positions:
        """Of each partition of the message log that `ends` names, the first offset whose record has this time or a
        later one; its end when there is none. Raises KafkaLogError."""
        which: OffsetSpec = OffsetSpec.for_timestamp(max(0, unix_ms))
        found = self._offsets(self.kafka.log_topic, ends, which)
        return {number: at if at >= 0 else ends[number] for number, at in found.items()}

    def identity(self) -> str:
        """Which log it is: that of one cluster, and another one when the topic was deleted and made anew.

        Raises KafkaLogError.
        """
        topic = self.kafka.log_topic
        with self._told(f"the identity of {topic}"):
            cluster = self._result(self._admin.describe_cluster(request_timeout=self._timeout_s))
            told = self._admin.describe_topics(TopicCollection([topic]), request_timeout=self._timeout_s)
            return f"{cluster.cluster_id} {self._result(told[topic]).topic_id}"

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Of those that are there: a topic that is made anew has another one. Raises KafkaLogError."""
        found: dict[str, str] = {}
        names = sorted(topics)
        for at in range(0, len(names), _SETTINGS_TOPICS):
            some = TopicCollection(names[at : at + _SETTINGS_TOPICS])
            with self._told("the identities of topics"):
                told = self._admin.describe_topics(some, request_timeout=self._timeout_s)
                for name, answer in told.items():
                    with suppress(KafkaException):
                        found[name] = str(self._result(answer).topic_id)
        return found

    def log_id(self) -> str:
        """The id of the message log's topic, which says what offsets belong to. Raises KafkaLogError."""
        return self.identity().partition(" ")[2]

    def archive_id(self) -> int:
        """The identity as a message store on a server has it. Raises KafkaLogError."""
        told = self.identity().encode()
        return int.from_bytes(blake2b(told, digest_size=8).digest(), "big", signed=True)

    def accepted_ms(self, positions: Mapping[int, int]) -> int | None:
        """When the oldest of the records at these positions was accepted; None when none of them is there."""
        found = [self._timestamp(partition, offset) for partition, offset in positions.items()]
        return min((unix_ms for unix_ms in found if unix_ms is not None), default=None)

    def progress(self) -> dict[str, Positions]:
        """What was published last of this message log, by query; empty while the topic is not there.

        Raises KafkaLogError.
        """
        return self.published().done

    def published(self) -> Published:
        """All that queries and a driver elsewhere have published. Raises KafkaLogError."""
        topic = self.kafka.progress_topic
        if topic not in self.topics():
            return Published({})
        numbers = self._partitions(topic)
        ends = self._offsets(topic, numbers, _LATEST)
        log_id = self.log_id()
        found: dict[str, Positions] = {}
        report = None
        for record in self._read_all(topic, ends):
            if record.key() == REPORT_KEY:
                report = _report_of(record)
                continue
            told = read_progress(record.key(), record.value(), record.headers(), log_id)  # type: ignore[arg-type]
            if told is not None:
                found.setdefault(told.query, {})[told.partition] = told.next_offset
        return Published(found, report)

    def reports(self, begin: Positions) -> tuple[list[ToldReport], Positions]:
        """What drivers elsewhere have said from `begin` on, and where to ask from next. Asked again and again by one
        thread at a time, so its consumer stays until `close`. Raises KafkaLogError."""
        topic = self.kafka.progress_topic
        if topic not in self.topics():
            return [], {}
        ends = self._offsets(topic, self._partitions(topic), _LATEST)
        if self._listener is None:
            self._listener = self._consumer()
        try:
            begin = {number: begin.get(number, 0) for number in ends}
            records = self._read_all(topic, ends, begin, self._listener)
        except KafkaLogError:
            self._stop_listening()
            raise
        return [_report_of(record) for record in records if record.key() == REPORT_KEY], ends

    def publish(self, query: str, positions: Mapping[int, int]) -> None:
        """Say that every record below these positions has had its effect; stored when it returns.

        Raises KafkaLogError.
        """
        values = {
            progress_key(query, partition): str(offset).encode() for partition, offset in positions.items()
        }
        self._send(f"progress of {query}", values)

    def publish_report(self, value: bytes) -> None:
        """Say how the driver is; stored when it returns. Raises KafkaLogError."""
        self._send("the report of the driver", {REPORT_KEY: value})

    def _send(self, what: str, values: Mapping[bytes, bytes]) -> None:
        with self._making:
            producer = self._producer or self._new_producer()
            log_id = self._log_id
        failures: list[KafkaError] = []
        left = set(values)

        def reported(key: bytes, error: KafkaError | None, _: Any) -> None:
            left.discard(key)
            if error is not None:
                failures.append(error)

        topic = self.kafka.progress_topic
        with self._told(f"publishing to {topic}"):
            for key, value in values.items():
                producer.produce(
                    topic,
                    value,
                    key,
                    headers=[(LOG_HEADER, log_id.encode())],
                    on_delivery=partial(reported, key),
                )
            # Others publish by the same producer: what is left of theirs is nothing to wait for here.
            deadline_s = time.monotonic() + self._timeout_s
            while left and time.monotonic() < deadline_s:
                producer.poll(_POLL_S)
        if failures or left:
            with self._making:
                if self._producer is producer:
                    self._producer = None  # the topic may be gone: it is looked for again
            raise KafkaLogError(f"{topic}: {what} could not be published: {failures or 'no answer'}")

    def _new_producer(self) -> Producer:
        """For the topic of progress, which is made when it is not there."""
        self.ensure_topic(self.kafka.progress_topic, settings=TOPIC_SETTINGS)
        self._log_id = self.log_id()
        timeout_ms = str(round(self._timeout_s * 1000))
        options = {"acks": "all", "enable.idempotence": "true", "message.timeout.ms": timeout_ms}
        self._producer = Producer(self._options | options)
        return self._producer

    def ensure_topic(self, name: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> bool:
        """Whether it was made now; False when it is there already. Raises KafkaLogError."""
        with self._told(f"making {name}"):
            topic = NewTopic(name, num_partitions=partitions, config=dict(settings or {}))
            try:
                self._result(self._admin.create_topics([topic])[name])
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    return False
                raise
        self._wait_for(name)
        return True

    def record_limits(self, topics: Iterable[str]) -> dict[str, int]:
        """What each of these takes of one record with its batch, in bytes; those that are not there are left out.

        Raises KafkaLogError.
        """
        found: dict[str, int] = {}
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        for begin in range(0, len(resources), _SETTINGS_TOPICS):
            asked = resources[begin : begin + _SETTINGS_TOPICS]
            with self._told(f"the settings of {len(asked)} topics, {asked[0].name} the first"):
                answers = self._admin.describe_configs(asked, request_timeout=self._timeout_s)
                for resource, answer in answers.items():
                    settings = self._unless_gone(answer)
                    if settings is not None:
                        found[resource.name] = int(settings[_RECORD_LIMIT].value)
        return found

    def raise_record_limits(self, limits: Mapping[str, int]) -> dict[str, str]:
        """Those for which Kafka does not allow it, and why; done for the others that are there.

        Raises KafkaLogError for what may pass.
        """
        refused: dict[str, str] = {}
        resources = [
            ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[_record_limit(to)])
            for topic, to in limits.items()
        ]
        for begin in range(0, len(resources), _SETTINGS_TOPICS):
            asked = resources[begin : begin + _SETTINGS_TOPICS]
            with self._told(f"raising {_RECORD_LIMIT} of {len(asked)} topics, {asked[0].name} the first"):
                answers = self._admin.incremental_alter_configs(asked, request_timeout=self._timeout_s)
                for resource, answer in answers.items():
                    try:
                        self._unless_gone(answer)
                    except KafkaException as error:
                        if error.args[0].code() not in _REFUSED:
                            raise
                        refused[resource.name] = error.args[0].str()
        return refused

    def _unless_gone(self, answer: "Future[Any]") -> Any:
        """None for a topic that is not there."""
        try:
            return self._result(answer)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise

    def close(self) -> None:
        """Let go of the clients; nothing that was published waits any more."""
        self._producer = None
        self._stop_listening()

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _wait_for(self, name: str) -> None:
        """A new topic is not known to every server at once, nor has each partition its leader."""
        deadline_s = time.monotonic() + _THERE_S
        while True:
            try:
                self._offsets(name, self._partitions(name), _LATEST)
                return
            except KafkaLogError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_POLL_S)

    def _partitions(self, topic: str) -> list[int]:
        with self._told(f"partitions of {topic}"):
            found = self._admin.list_topics(topic, timeout=self._timeout_s).topics[topic]
        if found.error is not None:
            raise KafkaLogError(f"{self.kafka.bootstrap}: {topic}: {found.error.str()}")
        if not found.partitions:
            raise KafkaLogError(
                f"{self.kafka.bootstrap}: {topic} has no partitions, as one that is being deleted"
            )
        return sorted(found.partitions)

    def _offsets(self, topic: str, partitions: Iterable[int], which: OffsetSpec) -> Positions:
        """Asked again while a partition has no leader: the client does not do it for this question."""
        asked = {TopicPartition(topic, number): which for number in partitions}
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            with self._told(f"offsets of {topic}"):
                answers = self._admin.list_offsets(asked, request_timeout=self._timeout_s)
                try:
                    return {
                        one.partition: int(self._result(answer).offset) for one, answer in answers.items()
                    }
                except KafkaException as error:
                    if error.args[0].code() not in _NO_LEADER_YET or time.monotonic() > deadline_s:
                        raise
            time.sleep(_POLL_S)

    def _timestamp(self, partition: int, offset: int) -> int | None:
        with self._told("the age of a record"), self._consumer() as consumer:
            consumer.assign([TopicPartition(self.kafka.log_topic, partition, offset)])
            record = consumer.poll(self._timeout_s)
            if record is not None and _is_of_group(record.error()):
                record = consumer.poll(self._timeout_s)
        if record is None or record.error() is not None:
            return None
        return int(record.timestamp()[1])

    def newest(self, topic: str, limit: int) -> list[Message]:
        """The last records of each partition of a topic, at most so many; none when it is not there. Raises
        KafkaLogError."""
        if topic not in self.topics():
            return []
        ends = {number: found.end for number, found in self.bounds(topic).items()}
        return self._read_all(topic, ends, {number: end - limit for number, end in ends.items()})

    def records(self, topic: str, partition: int, begin: int, end: int) -> Iterator[Message]:
        """Of one partition of a topic, from offset to offset, some at a time. Raises KafkaLogError."""
        reader = self._consumer()
        try:
            for first in range(begin, end, _READ_AT_ONCE):
                last = min(end, first + _READ_AT_ONCE)
                yield from self._read_all(topic, {partition: last}, {partition: first}, reader)
        finally:
            reader.close()

    def _read_all(
        self,
        topic: str,
        ends: Positions,
        begin: Mapping[int, int] | None = None,
        reader: "_PositionReader | None" = None,
    ) -> list[Message]:
        """Everything below `ends`, from `begin` on, with what is not there any more left out; by a `reader` that stays,
        or by one of its own."""
        firsts = self._offsets(topic, ends, _EARLIEST)
        if begin is not None:
            firsts = {number: max(first, begin[number]) for number, first in firsts.items()}
        left = {number: end for number, end in ends.items() if end > firsts[number]}
        if not left:
            return []
        rows: list[Message] = []
        with self._told(topic), nullcontext(reader.consumer) if reader else self._consumer() as consumer:
            consumer.assign([TopicPartition(topic, number, firsts[number]) for number in left])
            deadline_s = time.monotonic() + self._timeout_s
            while left:
                rows += [record for record in consumer.consume(1_000, _POLL_S) if record.error() is None]
                for place in consumer.position([TopicPartition(topic, number) for number in left]):
                    if place.offset >= left[place.partition]:
                        del left[place.partition]
                if left and time.monotonic() > deadline_s:
                    raise KafkaLogError(
                        f"{self.kafka.bootstrap}: {topic} was not read within {self._timeout_s:g} s"
                    )
        return rows

    def _consumer(self) -> "_PositionReader":
        return _PositionReader(self._options | {"group.id": f"{self.kafka.prefix}-pipeline-positions"})

    def _result(self, answer: "Future[Any]") -> Any:
        return answer.result(self._timeout_s)

    def _told(self, what: str) -> "_ClientErrors":
        return _ClientErrors(f"{self.kafka.bootstrap}: {what}", self._answered, self._why)


def _is_of_group(error: KafkaError | None) -> bool:
    """A consumer asks for the coordinator of its group also when it needs none, and is told once that it may not."""
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def _report_of(record: Message) -> ToldReport:
    return told_report(bytes(record.value() or b""), int(record.timestamp()[1]), time.time_ns() // 1_000_000)


def _record_limit(to: int) -> ConfigEntry:
    return ConfigEntry(_RECORD_LIMIT, str(to), incremental_operation=AlterConfigOpType.SET)


class _PositionReader:
    """A consumer of no group."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        own = {
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            # A transaction that somebody left open would hide every record behind it.
            "isolation.level": "read_uncommitted",
        }
        self.consumer = Consumer({**options, **own})

    def __enter__(self) -> Consumer:
        return self.consumer

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave no connection behind."""
        with suppress(KafkaException):
            self.consumer.close()


class _ClientErrors:
    """Turns what the client raises into a KafkaLogError that says what was asked of whom, and why nobody answers."""

    def __init__(self, what: str, answered: Callable[[], None], why: Callable[[], str]) -> None:
        self._what = what
        self._answered = answered
        self._why = why

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self._answered()
        elif isinstance(error, KafkaException):
            told: KafkaError = error.args[0]
            why = self._why() if told.code() in _UNREACHED else ""
            raise KafkaLogError(f"{self._what}: {told.str()}{why}") from error
        elif isinstance(error, TimeoutError):
            raise KafkaLogError(f"{self._what}: no answer in time{self._why()}") from error
