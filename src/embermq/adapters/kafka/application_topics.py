"""The topics that are application logs: made before the first record can match, trimmed, deleted, listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic
from msgspec import Struct

from embermq.adapters.kafka.client import RETRY_S, WatchedAdmin, error_of, unavailable
from embermq.model.application_logs import ApplicationLogNames
from embermq.ports.errors import StoreUnavailable

SETTINGS: dict[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
}
"""Of each log, whatever else is configured: nothing that a reader needs vanishes by itself."""

_FIRST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_END: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]

Place = tuple[str, int]
"""Topic and partition."""


class ApplicationLogSize(Struct, frozen=True):
    """One log. `committed` are the offsets below which all is settled, by partition; `lag` the records behind them."""

    name: str
    starts: dict[int, int]
    ends: dict[int, int]
    committed: dict[int, int]

    @property
    def records(self) -> int:
        """How many there are."""
        return sum(end - self.starts[partition] for partition, end in self.ends.items())

    @property
    def lag(self) -> int:
        """How many are not settled."""
        return sum(
            max(0, end - max(self.starts[partition], self.committed.get(partition, 0)))
            for partition, end in self.ends.items()
        )


class ApplicationTopics:
    """Of one prefix. Every call waits, at most about `kafka.request_timeout_s`, so none is made on the broker's thread;
    they raise StoreUnavailable."""

    def __init__(self, admin: WatchedAdmin, names: ApplicationLogNames) -> None:
        self._admin = admin
        self._names = names

    def create(
        self, log: str, *, partitions: int = 1, replicas: int = 0, settings: Mapping[str, str] | None = None
    ) -> dict[int, int]:
        """Make a log, or find the one that is there. Returns when it can be written and read: the end of each
        partition, where the reader of a new session begins. `replicas` 0 is what the cluster has for new topics."""
        topic = NewTopic(
            log,
            num_partitions=partitions,
            replication_factor=replicas or -1,
            config=dict(settings or {}) | SETTINGS,
        )
        timeout_s = self._admin.settings.request_timeout_s
        doing = f"cannot make application log {log}"
        self._tolerating(
            KafkaError.TOPIC_ALREADY_EXISTS,
            doing,
            lambda: self._admin.client.create_topics(
                [topic], operation_timeout=timeout_s, request_timeout=timeout_s
            ),
        )
        found = self._partitions(log)
        if len(found) != partitions:
            raise StoreUnavailable(
                f"{self._admin.address}: application log {log} has {len(found)} partitions, {partitions} are "
                "configured: it keeps those it was made with, or the order of its messages is lost"
            )
        return {partition: end for (_, partition), end in self.ends(found).items()}

    def delete(self, log: str, groups: Iterable[str] = ()) -> None:
        """Delete a log and the positions of its groups; nothing happens when they are not there."""
        client, timeout_s = self._admin.client, self._admin.settings.request_timeout_s
        self._tolerating(
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            f"cannot delete application log {log}",
            lambda: client.delete_topics([log], operation_timeout=timeout_s, request_timeout=timeout_s),
        )
        for group in groups:
            self._tolerating(
                KafkaError.GROUP_ID_NOT_FOUND,
                f"cannot delete group {group}",
                lambda group=group: client.delete_consumer_groups([group], request_timeout=timeout_s),
            )

    def names(self) -> list[str]:
        """All application logs of the prefix, in order."""
        try:
            found = self._admin.client.list_topics(timeout=self._admin.settings.request_timeout_s).topics
        except KafkaException as error:
            raise unavailable(self._admin.address, "cannot list its topics", error) from None
        return sorted(topic for topic in found if self._names.is_application_log(topic))

    def sizes(
        self, committed: Mapping[str, Mapping[int, int]], groups: Mapping[str, str] | None = None
    ) -> list[ApplicationLogSize]:
        """All logs with their lag. `committed` are the positions that the broker stores, by log; `groups` names the
        consumer group whose positions count for a log."""
        try:
            topics = self._admin.client.list_topics(timeout=self._admin.settings.request_timeout_s).topics
        except KafkaException as error:
            raise unavailable(self._admin.address, "cannot list its topics", error) from None
        places = [
            (name, partition)
            for name, topic in topics.items()
            if self._names.is_application_log(name)
            for partition in topic.partitions
        ]
        starts, ends = self._offsets(places, _FIRST), self.ends(places)
        known = {log: dict(offsets) for log, offsets in committed.items()}
        for log, group in (groups or {}).items():
            known[log] = self._group_offsets(group, log)
        return [
            ApplicationLogSize(
                name,
                {partition: starts[name, partition] for partition in topic.partitions},
                {partition: ends[name, partition] for partition in topic.partitions},
                known.get(name, {}),
            )
            for name, topic in sorted(topics.items())
            if self._names.is_application_log(name)
        ]

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The ends of partitions as they are now, all asked for at once."""
        return self._offsets(list(places), _END)

    def trim(self, bases: Mapping[Place, int]) -> None:
        """Delete what lies before these offsets; asked for at once."""
        wanted = [
            TopicPartition(log, partition, offset) for (log, partition), offset in bases.items() if offset > 0
        ]
        if wanted:
            self._admin.ask("cannot trim application logs", lambda: self._admin.client.delete_records(wanted))

    def _partitions(self, log: str) -> list[Place]:
        """Waits until each has a leader: not all servers know a new topic at once."""
        timeout_s = self._admin.settings.request_timeout_s
        for _ in range(max(1, int(timeout_s / RETRY_S))):
            try:
                topic = self._admin.client.list_topics(log, timeout_s).topics[log]
            except KafkaException as error:
                raise unavailable(
                    self._admin.address, f"cannot look at application log {log}", error
                ) from None
            if topic.error is None and all(one.leader >= 0 for one in topic.partitions.values()):
                return [(log, partition) for partition in topic.partitions]
            self._admin.client.poll(RETRY_S)
        raise StoreUnavailable(f"{self._admin.address}: application log {log} was made and does not come up")

    def _offsets(self, places: list[Place], which: OffsetSpec) -> dict[Place, int]:
        if not places:
            return {}
        asked = {TopicPartition(log, partition): which for log, partition in places}
        timeout_s = self._admin.settings.request_timeout_s
        answers = self._admin.ask(
            "cannot ask for the ends of application logs",
            lambda: self._admin.client.list_offsets(asked, request_timeout=timeout_s),
        )
        return {(place.topic, place.partition): answer.offset for place, answer in answers.items()}

    def _group_offsets(self, group: str, log: str) -> dict[int, int]:
        answers = self._admin.ask(
            f"cannot ask for the positions of group {group}",
            lambda: self._admin.client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]),
        )
        return {
            place.partition: place.offset
            for place in answers[group].topic_partitions
            if place.topic == log and place.offset >= 0
        }

    def _tolerating(self, code: int, doing: str, request: object) -> None:
        """Ask for what may have happened already; what passes by itself is asked again."""
        try:
            self._admin.ask(doing, request)  # type: ignore[arg-type]
        except StoreUnavailable as error:
            cause = error.__context__
            if not (isinstance(cause, KafkaException) and error_of(cause).code() == code):
                raise
