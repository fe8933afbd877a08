"""The topic of the message log: made as configured, checked when it is there, and what its settings are worth.

It keeps everything: the broker deletes what nobody needs any more (DeleteRecords). Kafka's own retention would take
what readers have not read.

Where the message log ends at a start, and where it goes on when it has lost its end. Kafka gives the offsets behind
the new end again, and readers go by offsets: what stands at one that they have had would be a repeat to them, or be
passed over. So new records go into another partition, the next one, which is made; the one before is read to its end
and gets nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AlterConfigOpType  # type: ignore[attr-defined]
from confluent_kafka.admin._config import ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions
from msgspec import Struct

from embermq.adapters.kafka.client import LOG, RETRY_S, WatchedAdmin, error_of, told, unavailable
from embermq.adapters.kafka.positions import LogPositions
from embermq.adapters.kafka.reading import PartitionReader, is_end
from embermq.formats.kafka_record import HEADERS_BYTES, record_bytes_max
from embermq.formats.pipeline_progress import progress_topic, read_progress
from embermq.model.position import EXACT_PARTITIONS, offset_of, partition_of, position_of
from embermq.ports.errors import StoreUnavailable
from embermq.ports.known_log import KnownLog

REQUEST_BYTES = 64 * 1024
"""What a request has besides the record that it brings."""
REQUEST_LIMIT = "socket.request.max.bytes"
RECORD_LIMIT = "max.message.bytes"
KEPT: dict[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
}
"""What the topic must have, and why it is refused otherwise: records would vanish, or lie about their time."""

ANY_TIME = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
"""A clock that is ahead of Kafka's does not make records that are refused. Kafka before 3.6 has no such limit."""


def message_topic(prefix: str) -> str:
    """Name of the topic that is the message log."""
    return f"{prefix}.msg.all"


class Durability(Struct, frozen=True):
    """What the cluster really does for the log's topic. `replicas` is the least that any partition has."""

    topic: str
    replicas: int
    min_insync_replicas: int
    unclean_election: bool

    @property
    def losses_survived(self) -> int:
        """So many servers may be lost for good at any moment, and what was acknowledged is still there."""
        return max(0, min(self.min_insync_replicas, self.replicas) - 1) if not self.unclean_election else 0

    def __str__(self) -> str:
        """One sentence for operators."""
        facts = f"{self.topic}: {_count(self.replicas, 'copy', 'copies')} of each partition"
        facts += f", min.insync.replicas {self.min_insync_replicas}"
        if self.unclean_election and self.replicas > 1:
            return (
                f"{facts}, unclean leader election on: an acknowledged message may be lost with a single server, since "
                "one that lacks it may be made leader"
            )
        survived = self.losses_survived
        if not survived:
            lost = "its disk" if self.replicas == 1 else "the leader's disk"
            return (
                f"{facts}: an acknowledged message survives the end of any process, it is lost with {lost}; and Kafka "
                "leaves it to the operating system when that is written, so a power failure may take it too"
            )
        away = self.replicas - self.min_insync_replicas
        return (
            f"{facts}: an acknowledged message survives the loss of {_count(survived, 'server', 'servers')}; with more "
            f"than {away} away, publishes wait"
        )


def _record_limit(found: dict[str, str]) -> int:
    return int(found.get(RECORD_LIMIT, "0"))


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


class LogTopic:
    """Of one prefix. Every call waits, at most `request_timeout_s`, and raises StoreUnavailable."""

    def __init__(self, admin: WatchedAdmin, *, packet_bytes_max: int) -> None:
        self._admin = admin
        self._settings = admin.settings
        self.name = message_topic(admin.settings.prefix)
        self.record_bytes_max = record_bytes_max(packet_bytes_max)
        self.partitions = 0
        """How many it has, once they have been looked at."""

    def open(self, *, is_new: bool) -> Durability:
        """Make sure that the topic is there and fit. `is_new`: the broker has no log yet, so it may be made; else one
        that is missing has been lost, and an empty one in its place would hide that."""
        self._admin.wait()
        replicas = self._replicas()
        if replicas is None:
            if not is_new:
                raise StoreUnavailable(
                    f"{self._admin.address}: topic {self.name} is gone, and with it messages that were acknowledged: "
                    "restore it; to go on without them, create it as it was"
                )
            self._create()
            replicas = self._replicas(wait=True)
        assert replicas is not None
        self._check_partitions(self.partitions)
        found = self._describe()
        if _record_limit(found) < self.record_bytes_max:
            found = self._raise_record_limit(found)
        problems = [*self._problems(found), *self._server_problems()]
        if problems:
            raise StoreUnavailable(f"{self._admin.address}: topic {self.name}: {'; '.join(problems)}")
        return self._durability(replicas, found)

    def add_partitions(self, total: int) -> None:
        """Make sure that there are so many; those that are there stay as they are."""
        if total <= self.partitions:
            return
        self._check_partitions(total)
        timeout_s = self._settings.request_timeout_s
        request = partial(
            self._admin.client.create_partitions,
            [NewPartitions(self.name, total)],
            operation_timeout=timeout_s,
            request_timeout=timeout_s,
        )
        # Kafka refuses it as none more than there are when a try before has taken effect: whether it has is seen below.
        doing = f"cannot add a partition to topic {self.name}"
        self._admin.ask(doing, request, is_there=True, done_before=KafkaError.INVALID_PARTITIONS)
        deadline_s = time.monotonic() + timeout_s
        while len(self._replicas(wait=True) or ()) < total:  # not every server knows it at once
            if time.monotonic() > deadline_s:
                raise StoreUnavailable(
                    f"{self._admin.address}: topic {self.name}: partition {total - 1} was added and does not come up"
                )
            self._admin.pause(RETRY_S)

    def _check_partitions(self, total: int) -> None:
        if total > EXACT_PARTITIONS:
            raise StoreUnavailable(
                f"{self._admin.address}: topic {self.name}: {total} partitions are more than the {EXACT_PARTITIONS} "
                "whose positions Redis holds exactly; a new log, with another kafka.prefix and a new data directory, "
                "begins with one"
            )

    def durability(self) -> Durability | None:
        """What is there, for a report; None when there is no topic yet."""
        self._admin.wait()
        replicas = self._replicas()
        return None if replicas is None else self._durability(replicas, self._describe())

    def identity(self) -> str:
        """The topic's id: another one when it was deleted and made anew, which its offsets do not show."""
        timeout_s = self._settings.request_timeout_s
        answers = self._admin.ask(
            f"cannot look at topic {self.name}",
            lambda: self._admin.client.describe_topics(
                TopicCollection([self.name]), request_timeout=timeout_s
            ),
            is_there=True,
        )
        return str(answers[self.name].topic_id)

    def _durability(self, replicas: list[int], found: dict[str, str]) -> Durability:
        return Durability(
            self.name,
            min(replicas),
            int(found.get("min.insync.replicas", "1")),
            found.get("unclean.leader.election.enable", "false") == "true",
        )

    def _replicas(self, *, wait: bool = False) -> list[int] | None:
        """How many each partition has; None without a topic. `wait`: it was made just now, not all servers know."""
        attempts = 100 if wait else 1
        for _ in range(attempts):
            try:
                topics = self._admin.client.list_topics(self.name, self._settings.request_timeout_s).topics
            except KafkaException as error:
                raise unavailable(self._admin.address, "cannot look at its topics", error) from None
            topic = topics[self.name]
            if topic.error is None:
                self.partitions = len(topic.partitions)
                if not wait or all(part.leader >= 0 for part in topic.partitions.values()):
                    return [len(part.replicas) for part in topic.partitions.values()]
            elif topic.error.code() not in (
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                KafkaError.LEADER_NOT_AVAILABLE,
            ):
                raise StoreUnavailable(f"{self._admin.address}: topic {self.name}: {told(topic.error)}")
            if wait:
                self._admin.client.poll(0.1)
        if wait:
            raise StoreUnavailable(f"{self._admin.address}: topic {self.name} was made and does not come up")
        return None

    def _create(self) -> None:
        settings = self._settings
        config = KEPT | {RECORD_LIMIT: str(self.record_bytes_max)}
        if settings.min_insync_replicas:
            config["min.insync.replicas"] = str(settings.min_insync_replicas)
        try:
            self._admin.make_topic(self.name, config | ANY_TIME)
        except KafkaException as error:
            if error_of(error).code() != KafkaError.INVALID_CONFIG:
                raise unavailable(self._admin.address, f"cannot make topic {self.name}", error) from None
            try:
                self._admin.make_topic(self.name, config)
            except KafkaException as other:
                raise unavailable(self._admin.address, f"cannot make topic {self.name}", other) from None

    def _server_problems(self) -> Iterator[str]:
        """A server ends the connection of who sends it a larger request than it takes: the driver would send that one
        again for ever, and everything else behind it."""
        needed = self.record_bytes_max + REQUEST_BYTES
        try:
            servers = self._admin.client.list_topics(self.name, self._settings.request_timeout_s).brokers
        except KafkaException as error:
            raise unavailable(self._admin.address, "cannot look at its servers", error) from None
        for server in servers:
            limit = self._request_limit(server)
            if 0 < limit < needed:
                yield (
                    f"{REQUEST_LIMIT} of server {server} is {limit}, must be at least {needed} for "
                    f"mqtt.packet_bytes_max of {self.record_bytes_max - HEADERS_BYTES}"
                )

    def _request_limit(self, server: int) -> int:
        """0 when it is not told: a server may be away, or we may not ask."""
        resource = ConfigResource(
            ConfigResource.Type.BROKER, str(server)
        )  # one a request: each answers for itself
        timeout_s = self._settings.request_timeout_s
        try:
            answers = self._admin.client.describe_configs([resource], request_timeout=timeout_s)
            entry = self._admin.result(answers[resource]).get(REQUEST_LIMIT)
        except (KafkaException, TimeoutError) as error:
            why = told(error_of(error)) if isinstance(error, KafkaException) else "no answer"
            LOG.info(
                "%s: %s of server %d is not checked: %s", self._admin.address, REQUEST_LIMIT, server, why
            )
            return 0
        return int(entry.value) if entry is not None and entry.value else 0

    def _raise_record_limit(self, found: dict[str, str]) -> dict[str, str]:
        """Have the topic take the largest record; returns its settings then. Where that is not allowed they are as they
        were, and are refused as such."""
        setting = ConfigEntry(
            RECORD_LIMIT, str(self.record_bytes_max), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.name, incremental_configs=[setting])
        timeout_s = self._settings.request_timeout_s
        request = partial(self._admin.client.incremental_alter_configs, [resource], request_timeout=timeout_s)
        try:
            self._admin.ask(f"cannot raise {RECORD_LIMIT} of topic {self.name}", request, is_there=True)
        except StoreUnavailable as error:
            LOG.warning("%s", error)
            return found
        LOG.warning(
            "%s: topic %s took %d bytes of a record (%s) and takes %d now, as mqtt.packet_bytes_max needs",
            self._admin.address,
            self.name,
            _record_limit(found),
            RECORD_LIMIT,
            self.record_bytes_max,
        )
        deadline_s = time.monotonic() + timeout_s
        while _record_limit(found) < self.record_bytes_max and time.monotonic() < deadline_s:
            found = self._describe()  # not every server knows it at once
            self._admin.pause(RETRY_S)
        return found

    def _describe(self) -> dict[str, str]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.name)
        timeout_s = self._settings.request_timeout_s
        request = partial(self._admin.client.describe_configs, [resource], request_timeout=timeout_s)
        answers = self._admin.ask(f"cannot read the settings of topic {self.name}", request, is_there=True)
        entries = answers[resource]
        return {name: entry.value or "" for name, entry in entries.items()}

    def _problems(self, found: dict[str, str]) -> Iterator[str]:
        for name, value in KEPT.items():
            if found.get(name, value) != value:
                yield f"{name} is {found[name]}, must be {value}"
        size = _record_limit(found)
        if size < self.record_bytes_max:
            yield (
                f"{RECORD_LIMIT} is {size}, must be at least {self.record_bytes_max} for "
                f"mqtt.packet_bytes_max of {self.record_bytes_max - HEADERS_BYTES}"
            )


CONSUMED_AT_ONCE = 1_000


def find_ends(admin: WatchedAdmin, topic: LogTopic, *, in_transactions: bool = False) -> LogPositions:
    """Where the log ends. One that is written `in_transactions` may have the end of the last one behind its last
    record, which no reader ever comes to. Raises StoreUnavailable."""
    newest = topic.partitions - 1
    skipped = 0
    reader = PartitionReader(admin.address, admin.settings, topic.name, reads_ahead=False)
    try:
        lows, ends = reader.offsets(topic.partitions)
        end = ends.pop(newest)
        if in_transactions and end > lows[newest]:
            reader.at({newest: end - 1})
            skipped = int(is_end(next(reader.consume(1))))
    finally:
        reader.close()
    return LogPositions(position_of(newest, end - skipped), ends, skipped=skipped)


def known_end(admin: WatchedAdmin, log_id: str, known: KnownLog, positions: LogPositions) -> int:
    """The position behind the last record that anybody may know of: the broker's stores, or the pipeline. After a run
    that ended in order the pipeline is not asked."""
    if known.ended_in_order and known.end == positions.end:
        return known.end
    try:
        told = _told_offsets(admin, log_id)
    except StoreUnavailable as error:
        LOG.warning("how far the pipeline is cannot be asked: %s", error)
        return known.end
    return max(known.end, *(position_of(one, offset) for one, offset in told.items()), 0)


def continue_behind(admin: WatchedAdmin, topic: LogTopic, positions: LogPositions, known: int) -> None:
    """Give no position below `known`. A log that ends before it has lost its end: it goes on in another partition.
    Raises StoreUnavailable."""
    if known <= positions.end + positions.skipped:
        return
    partition = max(positions.partition, partition_of(known - 1)) + 1
    LOG.error(
        "%s: topic %s has lost its end: partition %d ends at offset %d, partition %d was known up to %d; the messages "
        "in between are lost. New ones go to partition %d",
        admin.address,
        topic.name,
        positions.partition,
        offset_of(positions.end),
        partition_of(known),
        offset_of(known),
        partition,
    )
    topic.add_partitions(partition + 1)
    positions.close_partition(partition)


def _told_offsets(admin: WatchedAdmin, log_id: str) -> dict[int, int]:
    """The largest offset that any query of the pipeline has told of each partition of this log. Raises
    StoreUnavailable."""
    topic = progress_topic(admin.settings.prefix)
    there = admin.topics(admin.settings.request_timeout_s).get(topic)
    if there is None or there.error is not None:
        return {}
    found: dict[int, int] = {}
    reader = PartitionReader(admin.address, admin.settings, topic, reads_ahead=True)
    try:
        lows, ends = reader.offsets(len(there.partitions))
        left = {one for one, end in ends.items() if lows[one] < end}
        if left:
            reader.at({one: lows[one] for one in left})
        while left:
            for message in reader.consume(CONSUMED_AT_ONCE):
                partition = message.partition() or 0
                if not is_end(message):
                    told = read_progress(message.key(), message.value(), message.headers(), log_id)  # type: ignore[arg-type]
                    if told is not None:
                        found[told.partition] = max(found.get(told.partition, 0), told.next_offset)
                if (message.offset() or 0) + (not is_end(message)) >= ends[partition]:
                    left.discard(partition)
    finally:
        reader.close()
    return found
