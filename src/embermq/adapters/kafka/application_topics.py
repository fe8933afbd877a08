"""The topics that are application logs: made before the first record can match, trimmed, deleted, listed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    KafkaError,
    KafkaException,
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
    error_of,
    may_work_later,
    told,
    unavailable,
)
from embermq.formats.application_logs import ApplicationLogNames
from embermq.formats.kafka_record import record_bytes_max
from embermq.ports.application_logs import FoundLog, LogSize, Place
from embermq.ports.errors import StoreError, StoreUnavailable

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
        """A client's own log may have been given more than its one: nothing is written to the others."""
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
