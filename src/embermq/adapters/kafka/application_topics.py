"""The topics that are application logs: made before the first record can match, trimmed, deleted, listed.

Records of a client's own log that stand where nobody reads: in other partitions than 0. Somebody has given the log
more partitions, and what wrote to it then divided records by their keys. They are moved: copied to the end of
partition 0, each with the header that says so, and deleted where they were. A kill in between repeats that, and what
partition 0 has already is not copied again: it is known by its position in the message log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
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
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._topic import TopicDescription
from confluent_kafka.cimpl import NewTopic
from msgspec import Struct

from embermq.adapters.kafka.client import (
    LOG,
    RETRY_S,
    WatchedAdmin,
    client_options,
    error_of,
    is_of_unused_group,
    may_work_later,
    told,
    unavailable,
)
from embermq.formats.application_logs import ApplicationLogNames
from embermq.formats.kafka_record import MOVED_HEADER, read_source, record_bytes_max
from embermq.formats.log_record import RecordError
from embermq.ports.application_logs import FoundLog, LogSize, Place
from embermq.ports.errors import StoreError, StoreUnavailable

READ_AT_ONCE = 1_000
COPIED_BYTES = 64 * 1024
"""In one request, unless it is one record."""
WAIT_S = 0.1

Stretch = tuple[int, int]
"""The first offset of a partition and its end."""


def move_to_first(admin: WatchedAdmin, log: str, stretches: Mapping[int, Stretch]) -> int:
    """Have everything in partition 0 that a log has in these; returns how many records were copied. Nobody reads or
    trims the log meanwhile. Raises StoreUnavailable, and may be called again then."""
    strays = {number: at for number, at in stretches.items() if number and at[0] < at[1]}
    if not strays:
        return 0
    LOG.warning(
        "%s: application log %s has %d records in other partitions than 0, which nobody reads: they are moved there, "
        "behind what it has",
        admin.address,
        log,
        sum(end - first for first, end in strays.values()),
    )
    try:
        there = {source for one in _read(admin, log, 0, stretches[0]) if (source := _source(one)) is not None}
        copied = _Copies(admin, log)
        for partition, stretch in sorted(strays.items()):
            for one in _read(admin, log, partition, stretch):
                source = _source(one)
                if source is None or source not in there:
                    copied.add(one)
        copied.finish()
    except KafkaException as error:
        raise _trouble(admin, log, error_of(error)) from None
    ends = [TopicPartition(log, number, end) for number, (_, end) in strays.items()]
    admin.ask("cannot delete what was moved", lambda: admin.client.delete_records(ends))
    return copied.count


def _source(record: Message) -> int | None:
    """None for what cannot be understood; whoever reads it says so."""
    try:
        return read_source(record.headers())  # type: ignore[arg-type]
    except RecordError:
        return None


def _trouble(admin: WatchedAdmin, log: str, error: KafkaError) -> StoreUnavailable:
    return StoreUnavailable(f"{admin.address}: cannot move records of {log} to partition 0: {told(error)}")


def _read(admin: WatchedAdmin, log: str, partition: int, stretch: Stretch) -> Iterator[Message]:
    """Raises KafkaException, and StoreUnavailable when nothing comes for long."""
    first, end = stretch
    options = client_options(admin.address) | {
        "group.id": f"{admin.settings.prefix}-application-readers",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_uncommitted",
    }
    place = TopicPartition(log, partition, first)
    with closing(Consumer(options)) as consumer:
        consumer.assign([place])
        heard_s = time.monotonic()
        at = first
        while at < end:
            records = [one for one in consumer.consume(READ_AT_ONCE, WAIT_S) if _is_record(admin, log, one)]
            yield from (one for one in records if (one.offset() or 0) < end)
            # What deletes and transactions leave out has no record, but a position.
            at = max(at, consumer.position([place])[0].offset)
            if records:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > admin.settings.request_timeout_s:
                raise StoreUnavailable(
                    f"{admin.address}: {log}, partition {partition}, is not read beyond {at}"
                )
            admin.pause(0)


def _is_record(admin: WatchedAdmin, log: str, told_of: Message) -> bool:
    error = told_of.error()
    if error is not None and not is_of_unused_group(error):
        raise _trouble(admin, log, error)
    return error is None


class _Copies:
    """In partition 0, in the order in which they are added."""

    def __init__(self, admin: WatchedAdmin, log: str) -> None:
        self.count = 0
        self._admin = admin
        self._log = log
        self._problem: KafkaError | None = None
        timeout_ms = round(admin.settings.request_timeout_s * 1000)
        options: dict[str, str | int | bool] = {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": timeout_ms,
        }
        # A log takes what has been in it, but maybe not many of these at once.
        options |= {"message.max.bytes": 1_000_000_000, "batch.size": COPIED_BYTES}
        self._producer = Producer(client_options(admin.address) | options)

    def add(self, record: Message) -> None:
        headers = [*(record.headers() or ()), MOVED_HEADER]
        while True:
            try:
                self._producer.produce(
                    self._log,
                    record.value(),
                    record.key(),
                    partition=0,
                    headers=headers,
                    on_delivery=self._reported,
                )
            except BufferError:
                self._producer.poll(WAIT_S)
                self._admin.pause(0)
            else:
                self.count += 1
                return

    def _reported(self, error: KafkaError | None, _: Message) -> None:
        self._problem = self._problem or error

    def finish(self) -> None:
        """All are stored when it returns. Raises StoreUnavailable."""
        while self._producer.flush(WAIT_S):
            self._admin.pause(0)
        if self._problem is not None:
            raise _trouble(self._admin, self._log, self._problem)


LOOK_S = 0.5
"""Of a call of the driver that cannot be broken off."""
WRITTEN_AT_ONCE = 5_000
"""Kafka's controller writes at most 10,000 records for one request, and refuses all of it beyond that: for a topic one
that names it, one a partition and one a setting."""
DELETED_AT_ONCE = 1_000
HEADLESS = "partition {partition} has no leader: the server with its copy has to come back"
_MISSING = KafkaError.UNKNOWN_TOPIC_OR_PART
_FIRST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_END: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class LogProperties(Struct, frozen=True, kw_only=True):
    """Of logs that are made from now on. `replicas` 0 and `min_insync_replicas` 0 are what the cluster has for new
    topics."""

    packet_bytes_max: int
    replicas: int = 0
    min_insync_replicas: int = 0

    def settings(self) -> dict[str, str]:
        """As Kafka names them. What a reader needs does not vanish by itself."""
        found = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            # Who writes may have a clock that is far ahead: Kafka would refuse records by their time.
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(record_bytes_max(self.packet_bytes_max)),
        }
        if self.min_insync_replicas:
            found["min.insync.replicas"] = str(self.min_insync_replicas)
        return found


class ApplicationTopics:
    """Of one prefix. Every call waits, at most about `kafka.request_timeout_s`, so none is made on the broker's thread;
    they raise StoreUnavailable. Consumer groups are never asked for by the admin client, which may end the process
    when the coordinator is restarted meanwhile (librdkafka 3663)."""

    def __init__(self, admin: WatchedAdmin, names: ApplicationLogNames, properties: LogProperties) -> None:
        self._admin = admin
        self._client = admin.client
        self._timeout_s = admin.settings.request_timeout_s
        self._names = names
        self._properties = properties
        self._widened: set[str] = set()
        """Logs that somebody has given more partitions, and that were told of."""

    def ensure(self, wanted: Mapping[str, int]) -> dict[str, FoundLog | StoreError]:
        """Make logs with so many partitions, or find those that are there, all at once. Each can be written and read
        then. StoreUnavailable for what may pass by itself, any other StoreError for what does not."""
        found = self._look(wanted)
        missing = {log: wanted[log] for log, there in found.items() if there is None}
        made, refused = self._create(missing)
        if len(refused) < len(missing):
            found |= self._look([log for log in missing if log not in refused], until_there=True)
        answers: dict[str, FoundLog | StoreError] = {}
        old: list[Place] = []
        for log, partitions in wanted.items():
            there = found[log]
            problem = refused.get(log) or (there if isinstance(there, StoreError) else None)
            if problem is None and not isinstance(there, TopicDescription):
                problem = StoreUnavailable(
                    f"{self._admin.address}: application log {log} was made and does not come up"
                )
            if problem is not None:
                answers[log] = problem
                continue
            assert isinstance(there, TopicDescription)
            problem = self._partition_problem(log, len(there.partitions), partitions)
            if problem is not None:
                answers[log] = problem
            else:
                answers[log] = FoundLog(dict.fromkeys(range(partitions), 0), str(there.topic_id), log in made)
                old += [(log, partition) for partition in range(partitions) if log not in made]
        ends = self.ends(old)
        for log, answer in answers.items():
            if isinstance(answer, FoundLog) and not answer.is_new:
                behind = {partition: ends[log, partition] for partition in answer.ends}
                answers[log] = FoundLog(behind, answer.identity)
        return answers

    def give_up(self) -> None:
        """Whoever waits for an answer, on another thread, waits no longer."""
        self._admin.ended.set()

    def _partition_problem(self, log: str, has: int, wanted: int) -> StoreError | None:
        """A client's own log may have been given more than its one: there is nothing in the others, from now on."""
        if has == wanted:
            return None
        if has < wanted or self._names.is_shared_log(log):
            return StoreError(
                f"{self._admin.address}: application log {log} has {has} partitions, {wanted} are configured: it keeps "
                "those it was made with, or the order of its messages is lost"
            )
        if log not in self._widened:
            self._widened.add(log)
            LOG.warning(
                "%s: application log %s has %d partitions: a client's own log is written and read in partition 0 alone,"
                " the others stay empty",
                self._admin.address,
                log,
                has,
            )
        try:
            places = [(log, partition) for partition in range(has)]
            firsts, ends = self._offsets(places, _FIRST), self.ends(places)
            stretches = {place[1]: (firsts[place], ends[place]) for place in places}
            move_to_first(self._admin, log, stretches)
        except StoreUnavailable as error:
            return error
        return None

    def _create(self, wanted: Mapping[str, int]) -> tuple[set[str], dict[str, StoreError]]:
        """Which were made now, and why some could not be. One in neither was there already: the server that was asked
        before did not know it yet, and it may have records."""
        made: set[str] = set()
        refused: dict[str, StoreError] = {}
        settings = self._properties.settings()
        for some in self._pieces(wanted, len(settings)):
            topics = [
                NewTopic(log, wanted[log], self._properties.replicas or -1, config=settings) for log in some
            ]
            answers = self._client.create_topics(
                topics, operation_timeout=self._timeout_s, request_timeout=self._timeout_s
            )
            for log, answer in answers.items():
                try:
                    self._result(answer)
                    made.add(log)
                except KafkaException as error:
                    if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        refused[log] = self._problem(f"cannot make application log {log}", error)
        return made, refused

    def _pieces(self, wanted: Mapping[str, int], settings: int) -> Iterator[list[str]]:
        """Logs that may be made by one request."""
        piece: list[str] = []
        written = 0
        for log, partitions in wanted.items():
            records = 1 + settings + partitions
            if piece and written + records > WRITTEN_AT_ONCE:
                yield piece
                piece, written = [], 0
            piece.append(log)
            written += records
        if piece:
            yield piece

    def _problem(self, doing: str, error: KafkaException) -> StoreError:
        if may_work_later(error_of(error)):
            return unavailable(self._admin.address, doing, error)
        return StoreError(f"{self._admin.address}: {doing}: {told(error_of(error))}")

    def _look(
        self, logs: Collection[str], *, until_there: bool = False
    ) -> dict[str, TopicDescription | StoreError | None]:
        """None for those that are not there. A log counts when each partition has a leader; `until_there`: wait till
        all are so, since not all servers know a new topic at once."""
        found: dict[str, TopicDescription | StoreError | None] = {}
        left = list(logs)
        for _ in range(max(1, int(self._timeout_s / RETRY_S))):
            for log, answer in self._described(left).items():
                found[log] = self._description(log, answer)
            left = [
                log
                for log in left
                if isinstance(there := found[log], StoreUnavailable) or (until_there and there is None)
            ]
            if not left or not until_there:
                break
            self._admin.pause(RETRY_S)
        return found

    def _described(self, logs: Collection[str]) -> dict[str, Future[TopicDescription]]:
        answers: dict[str, Future[TopicDescription]] = self._client.describe_topics(
            TopicCollection(list(logs)), request_timeout=self._timeout_s
        )
        return answers

    def _description(
        self, log: str, answer: Future[TopicDescription]
    ) -> TopicDescription | StoreError | None:
        try:
            there: TopicDescription = self._result(answer)
        except KafkaException as error:
            if error_of(error).code() == _MISSING:
                return None
            return self._problem(f"cannot look at application log {log}", error)
        if all(partition.leader is not None for partition in there.partitions):
            return there
        return StoreUnavailable(
            f"{self._admin.address}: application log {log} has a partition without a leader"
        )

    def _result(self, answer: Future[Any]) -> Any:
        try:
            return self._admin.result(answer)
        except TimeoutError:
            raise StoreUnavailable(f"{self._admin.address}: no answer about application logs") from None

    def delete(self, logs: Collection[str]) -> None:
        """Delete logs; Kafka lets go of the positions that groups had in them. Nothing happens when they are not
        there. Returns when they are gone, so that the next to be made is another one."""
        names = list(logs)
        for begin in range(0, len(names), DELETED_AT_ONCE):
            self._delete(names[begin : begin + DELETED_AT_ONCE])

    def _delete(self, logs: list[str]) -> None:
        answers = self._client.delete_topics(
            logs, operation_timeout=self._timeout_s, request_timeout=self._timeout_s
        )
        for log, answer in answers.items():
            try:
                self._result(answer)
            except KafkaException as error:
                if error_of(error).code() != _MISSING:
                    raise self._problem(f"cannot delete application log {log}", error) from None
        for _ in range(max(1, int(self._timeout_s / RETRY_S))):
            left = [log for log, there in self._look(logs).items() if there is not None]
            if not left:
                return
            self._admin.pause(RETRY_S)
        raise StoreUnavailable(
            f"{self._admin.address}: application log {left[0]} was deleted and is still there"
        )

    def names(self) -> Collection[str]:
        """List the topics of all application logs of the prefix, as the cluster has them now."""
        return [name for name in self._admin.topics(LOOK_S) if self._names.is_application_log(name)]

    def sizes(self) -> list[LogSize]:
        """All logs of the prefix, in order."""
        topics = {
            name: topic
            for name, topic in sorted(self._admin.topics(LOOK_S).items())
            if self._names.is_application_log(name)
        }
        partitions = {name: tuple(topic.partitions) for name, topic in topics.items()}
        headless = {
            name: next((number for number, one in topic.partitions.items() if one.leader < 0), None)
            for name, topic in topics.items()
        }
        places = [
            (log, partition)
            for log, numbers in partitions.items()
            if headless[log] is None
            for partition in numbers
        ]
        starts, ends = self._offsets(places, _FIRST), self.ends(places)
        return [
            LogSize(
                log,
                {partition: starts[log, partition] for partition in numbers},
                {partition: ends[log, partition] for partition in numbers},
            )
            if headless[log] is None
            else LogSize(log, {}, {}, HEADLESS.format(partition=headless[log]))
            for log, numbers in partitions.items()
        ]

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The ends of partitions as they are now, all asked for at once."""
        return self._offsets(list(places), _END)

    def ends_of_those_there(self, logs: Mapping[str, int]) -> dict[Place, int]:
        """The ends of logs with so many partitions; those that are not there are left out, and those that cannot be
        asked for now: the others do not wait for them."""
        if not logs:
            return {}
        return self.ends(
            (log, partition)
            for log, there in self._look(logs).items()
            if isinstance(there, TopicDescription)
            for partition in range(logs[log])
        )

    def trim(self, bases: Mapping[Place, int]) -> None:
        """Delete what lies before these offsets; asked for at once."""
        wanted = [
            TopicPartition(log, partition, offset) for (log, partition), offset in bases.items() if offset > 0
        ]
        if wanted:
            self._admin.ask("cannot trim application logs", lambda: self._client.delete_records(wanted))

    def _offsets(self, places: list[Place], which: OffsetSpec) -> dict[Place, int]:
        if not places:
            return {}
        asked = {TopicPartition(log, partition): which for log, partition in places}
        request: Callable[[], dict[TopicPartition, Future[Any]]] = lambda: self._client.list_offsets(  # noqa: E731
            asked, request_timeout=self._timeout_s
        )
        answers = self._admin.ask("cannot ask for the ends of application logs", request)
        return {(place.topic, place.partition): answer.offset for place, answer in answers.items()}
