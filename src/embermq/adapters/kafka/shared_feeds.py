"""Reading logs of shared subscriptions: one consumer a member, which Kafka's group gives its partitions; one thread for
all members.

The committed offset of a partition and what stands beside it (model.application_positions) are stored in the group:
whoever gets the partition next goes on from there, unless its broker knows better.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from threading import Event, Thread

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from embermq.adapters.kafka.address import KafkaAddress, KafkaSettings
from embermq.adapters.kafka.application_feeds import (
    ASK_AGAIN_S,
    ASK_S,
    CONSUMED_AT_ONCE,
    GONE,
    UNREAD_BYTES_MAX,
    UNREAD_TOTAL_BYTES_MAX,
    Found,
    OpenFeed,
    ReadRights,
    consumer_options,
    feed_entry,
    hand_over,
    room_of_each,
    tell_gone,
)
from embermq.adapters.kafka.client import LOG, Failures, Post, error_of, may_work_later, told
from embermq.model.application_positions import StoredPositions, decode_metadata, encode_metadata
from embermq.ports.application_feed import KnownPositions, SharedFeed, SharedFeeds, SharedTaker, unknown

IDLE_S = 0.005
"""How long the thread sleeps when no member had anything."""
COMMIT_EVERY_S = 0.25
COMMITTED_S = 2.0
"""How long the positions of partitions that a member gets are waited for, before it tries again."""
RETRY_S = 0.5
LOOK_S = 1.0
SESSION_MS = 10_000
"""After that the partitions of a broker that has died go to other members."""
_RIGHTS = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED})
LEAVE_S = 5.0
"""How long an end waits for members to leave."""


class _Member(OpenFeed, SharedFeed):
    """`wanted` is written by the broker's thread, all else by the one that reads."""

    def __init__(
        self, feeds: KafkaSharedFeeds, group: str, log: str, taker: SharedTaker, known: KnownPositions
    ) -> None:
        super().__init__(log, taker)
        self.feeds = feeds
        self.known = known
        self.group = group
        self.shared_taker = taker
        self.consumer: Consumer | None = None
        self.next_offsets: dict[int, int] = {}
        self.unplaced: set[int] = set()
        """Partitions that it has been given, but whose positions Kafka has not told yet."""
        self.misplaced: set[int] = set()
        """Partitions that have no record at the offset that is to be read."""
        self.retry_s = self.find_s = self.look_s = 0.0
        self.refused = ""
        """Why Kafka does not let it read."""
        self.lacks_group = False
        """It is the group that it may not use, not the log."""
        self.told = ""
        """Why it gets nothing, as it was logged last."""
        self.rights_s = 0.0
        self.wanted: dict[int, StoredPositions] = {}
        self.committed: dict[int, StoredPositions] = {}
        self.commit_s = 0.0

    def release(self, size: int) -> None:
        self.released += size

    def commit(self, partition: int, positions: StoredPositions) -> None:
        self.wanted[partition] = positions

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.feeds.order(partial(self.feeds.leave, self))

    def is_read(self) -> None:
        """Kafka lets it read."""
        self.refused = self.told = ""

    def places(self, partitions: Iterable[int]) -> list[TopicPartition]:
        """As the driver names them."""
        return [TopicPartition(self.log, partition) for partition in partitions]

    def uncommitted(self) -> list[TopicPartition]:
        """Positions of its partitions that the group does not have yet; it has them from now on."""
        found: list[TopicPartition] = []
        for partition in self.next_offsets:
            positions = self.wanted.get(partition)
            if positions is not None and positions != self.committed.get(partition):
                self.committed[partition] = positions
                offset, metadata = positions.committed_offset, encode_metadata(positions)
                found.append(TopicPartition(self.log, partition, offset, metadata))
        return found


class KafkaSharedFeeds(SharedFeeds):
    """Of one broker. `post` runs a call on the broker's thread."""

    def __init__(
        self,
        address: KafkaAddress,
        settings: KafkaSettings,
        post: Post,
        *,
        unread_bytes_max: int = UNREAD_BYTES_MAX,
        unread_total_bytes_max: int = UNREAD_TOTAL_BYTES_MAX,
        failures: Failures | None = None,
    ) -> None:
        self._address = address
        self._post = post
        self._failures = failures or Failures()
        self._unread_bytes_max = self._room = unread_bytes_max
        self._unread_total_bytes_max = unread_total_bytes_max
        self._options = consumer_options(address) | {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": SESSION_MS,
            "error_cb": self._on_error,
        }
        self._orders: deque[Callable[[], None]] = deque()
        self._ordered = Event()
        self._members: list[_Member] = []
        self._leaving: list[Thread] = []
        self._closing = False
        self._failing = ""
        self._probe_s = 0.0
        self._rights = ReadRights(address, settings)
        self._thread = Thread(target=self._run, name="kafka shared logs", daemon=True)
        self._thread.start()

    @property
    def failing(self) -> str:
        if not self._thread.is_alive() and not self._closing:
            return f"{self._address}: the thread that reads shared logs has ended"
        return self._failing or next((one.refused for one in tuple(self._members) if one.refused), "")

    def join(self, group: str, log: str, taker: SharedTaker, known: KnownPositions = unknown) -> SharedFeed:
        member = _Member(self, group, log, taker, known)
        self.order(partial(self._subscribe, member))
        return member

    def close(self) -> None:
        """All members leave, with their positions; with a Kafka that does not answer they do so with the process."""
        self._closing = True
        self._ordered.set()
        self._thread.join(LEAVE_S)
        if self._thread.is_alive():
            return
        for member in list(self._members):
            member.closed = True
            self.leave(member)
        until_s = time.monotonic() + LEAVE_S
        for thread in self._leaving:
            thread.join(max(0.0, until_s - time.monotonic()))

    def order(self, what: Callable[[], None]) -> None:
        """Have something done on the thread."""
        self._orders.append(what)
        self._ordered.set()

    # On the thread

    def _run(self) -> None:
        while not self._closing:
            self._ordered.clear()
            while self._orders:
                try:
                    self._orders.popleft()()
                except Exception as error:  # the others are served on
                    self._failures.note(f"{self._address}: members of shared subscriptions", error)
            is_idle = True
            unread_bytes = sum(member.unread_bytes for member in self._members)
            self._room = room_of_each(unread_bytes, self._unread_bytes_max, self._unread_total_bytes_max)
            for member in list(self._members):
                try:
                    is_idle = not self._serve(member) and is_idle
                except KafkaException as error:
                    self._failing = f"{self._address}: {member.log}: {told(error_of(error))}"
                except (
                    Exception
                ) as error:  # what it was handed out last is lost to it, and not to the next one
                    reason = self._failures.note(f"{self._address}: reading {member.log}", error)
                    self._post(partial(tell_gone, member, reason))
                    self.leave(member)
            self._look_at_rights()
            if is_idle and self._failing:
                self._probe()
            if not (self._members or self._closing):  # looked at after `clear`: a later `set` is heard
                self._ordered.wait()
            elif is_idle:
                self._ordered.wait(IDLE_S)

    def _look_at_rights(self) -> None:
        """Where nothing comes, nothing would show that Kafka lets us read again."""
        refused = [member for member in self._members if member.refused]
        if not refused:
            return
        logs = {member.log for member in refused if not member.lacks_group}
        given = self._rights.given(logs) if logs else set()
        for member in refused:
            if member.log in given if not member.lacks_group else self._may_use_group(member):
                member.is_read()

    def _may_use_group(self, member: _Member) -> bool:
        now_s = time.monotonic()
        if now_s < member.rights_s or member.consumer is None:
            return False
        member.rights_s = now_s + ASK_AGAIN_S
        try:
            return all(place.error is None for place in member.consumer.committed(member.places([0]), ASK_S))
        except KafkaException:
            return False

    def _probe(self) -> None:
        """Nothing comes: because nothing is there, or because Kafka is away?"""
        now_s = time.monotonic()
        if now_s < self._probe_s or any(one.unplaced or one.misplaced for one in self._members):
            return
        self._probe_s = now_s + LOOK_S
        for member in self._members[:1]:
            assert member.consumer is not None
            try:
                member.consumer.list_topics(member.log, ASK_S)
            except KafkaException:
                return
            self._failing = ""

    def _subscribe(self, member: _Member) -> None:
        if member.closed:
            return
        try:
            member.consumer = consumer = Consumer(self._options | {"group.id": member.group})
        except (KafkaException, ValueError, TypeError) as error:
            reason = f"{self._address}: cannot make a consumer for {member.log}: {error}"
            self._post(partial(tell_gone, member, reason))
            return
        consumer.subscribe(
            [member.log],
            on_assign=lambda _, places: self._assigned(member, places),
            on_revoke=lambda _, places: self._revoked(member, places),
            on_lost=lambda _, places: self._lost(member, places),
        )
        self._members.append(member)

    def _serve(self, member: _Member) -> bool:
        """One round for one member; whether it had something. Nothing is asked of Kafka between the driver's handing
        out records and the broker's getting them: it does not hand them out twice."""
        consumer = member.consumer
        assert consumer is not None
        now_s = time.monotonic()
        if member.unplaced and now_s >= member.retry_s:
            self._place(member)
        if member.misplaced and now_s >= member.find_s:
            self._find_again(member)
        if member.look_s and now_s >= member.look_s:
            self._look(member)
        if member not in self._members:
            return True
        messages = consumer.consume(CONSUMED_AT_ONCE, 0)
        batches: dict[int, Found] = {}
        for message in messages:
            self._take(member, message, batches)
        if batches:
            self._failing = ""
            member.fetched += sum(entry.size for _, _, entries in batches.values() for entry in entries)
            self._post(partial(hand_over, list(batches.values())))
        if not member.paused and member.unread_bytes >= self._room:
            member.paused = True
            consumer.pause(member.places(member.next_offsets))
        elif member.paused and 2 * member.unread_bytes <= self._room:
            member.paused = False
            consumer.resume(member.places(member.next_offsets))
        if now_s >= member.commit_s:
            member.commit_s = now_s + COMMIT_EVERY_S
            offsets = member.uncommitted()
            if offsets:
                consumer.commit(offsets=offsets, asynchronous=True)
        return bool(messages)

    def _take(self, member: _Member, message: Message, batches: dict[int, Found]) -> None:
        error = message.error()
        if error is not None:
            if error.code() in GONE:
                member.look_s = member.look_s or time.monotonic() + LOOK_S
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                member.misplaced.add(message.partition() or 0)
            elif not may_work_later(error):
                self._refuse(member, error)
            return
        partition, offset = message.partition() or 0, message.offset() or 0
        if offset < member.next_offsets.get(partition, offset + 1):
            return
        member.next_offsets[partition] = offset + 1
        member.is_read()
        batch = batches.get(partition)
        if batch is None:
            batch = batches[partition] = (member, partition, [])
        batch[2].append(feed_entry(message, offset))

    def _refuse(self, member: _Member, error: KafkaError) -> None:
        """The driver tries it again, and says of a right that is missing no more than this once."""
        reason = f"{self._address}: {member.log}, group {member.group}: {told(error)}"
        if reason != member.told:
            LOG.error("a member of it gets nothing: %s", reason)
        member.told = reason
        if error.code() in _RIGHTS:
            member.refused = reason
            member.lacks_group = error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
            member.rights_s = time.monotonic() + ASK_AGAIN_S
        else:
            self._failing = reason

    def _assigned(self, member: _Member, places: list[TopicPartition]) -> None:
        member.is_read()
        member.unplaced.update(place.partition for place in places)
        assert member.consumer is not None
        member.consumer.incremental_assign([])  # or the driver begins by itself, where it likes
        self._place(member)

    def _place(self, member: _Member) -> None:
        """Ask where each new partition is to be read from, and begin."""
        consumer = member.consumer
        assert consumer is not None
        member.retry_s = time.monotonic() + RETRY_S
        found = {partition: known for partition in member.unplaced if (known := member.known(partition))}
        asked = member.places(member.unplaced - found.keys())
        try:
            told_places = consumer.committed(asked, COMMITTED_S) if asked else []
        except KafkaException as error:
            self._failing = f"{self._address}: {member.log}: {told(error_of(error))}"
            told_places = []
        for place in told_places:
            if place.error is None:
                found[place.partition] = self._stored(member, place)
        starts = [
            TopicPartition(member.log, partition, stored.base_offset) for partition, stored in found.items()
        ]
        try:
            consumer.incremental_assign(starts)
        except KafkaException as error:  # it would take with it what the driver is handing out
            self._failing = f"{self._address}: {member.log}: {told(error_of(error))}"
            return
        for partition, stored in found.items():
            member.unplaced.discard(partition)
            member.next_offsets[partition] = stored.base_offset
            member.committed[partition] = stored
            member.wanted.pop(partition, None)
            self._post(partial(_tell_assigned, member, partition, stored))
        change = consumer.pause if member.paused else consumer.resume
        with suppress(KafkaException):
            change(starts)  # one that was paused when it was taken away would still be

    def _stored(self, member: _Member, place: TopicPartition) -> StoredPositions:
        if place.offset < 0:
            return StoredPositions()
        try:
            return decode_metadata(place.offset, place.metadata)
        except ValueError as error:
            LOG.error("%s: group %s, partition %d: %s", self._address, member.group, place.partition, error)
            return StoredPositions(place.offset, place.offset)

    def _revoked(self, member: _Member, places: list[TopicPartition]) -> None:
        """Another member gets them: it is to know how far this one has come."""
        self._commit_now(member)
        self._lost(member, places)

    def _commit_now(self, member: _Member) -> None:
        offsets = member.uncommitted()
        if offsets and member.consumer is not None:
            try:
                member.consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                LOG.warning(
                    "%s: group %s: positions were not stored, records come again: %s",
                    self._address,
                    member.group,
                    told(error_of(error)),
                )

    def _lost(self, member: _Member, places: list[TopicPartition]) -> None:
        gone = [place.partition for place in places]
        begun = [partition for partition in gone if partition in member.next_offsets]
        for partition in begun:
            del member.next_offsets[partition]
            member.committed.pop(partition, None)
            self._post(partial(_tell_revoked, member, partition))
        member.unplaced.difference_update(gone)
        member.misplaced.difference_update(gone)
        assert member.consumer is not None
        member.consumer.incremental_unassign(member.places(begun))

    def _find_again(self, member: _Member) -> None:
        """While Kafka does not answer, its other partitions are read on."""
        try:
            while member.misplaced:
                self._find_place(member, min(member.misplaced))
        except KafkaException as error:
            self._failing = f"{self._address}: {member.log}: {told(error_of(error))}"
            member.find_s = time.monotonic() + RETRY_S

    def _find_place(self, member: _Member, partition: int) -> None:
        """The offset that was asked for is not there: what is left of the log is read, unless it is another log."""
        consumer, wanted = member.consumer, member.next_offsets.get(partition)
        if consumer is None or wanted is None:
            member.misplaced.discard(partition)
            return
        first, end = consumer.get_watermark_offsets(TopicPartition(member.log, partition), COMMITTED_S)
        if wanted > end:
            reason = (
                f"{self._address}: shared log {member.log} was made anew: offset {wanted} of partition {partition} was "
                f"to be read, it ends at {end}"
            )
            self._post(partial(tell_gone, member, reason))
            member.misplaced.clear()
            self.leave(member)
            return
        if wanted < first:
            LOG.error(
                "%s: shared log %s, partition %d: offset %d was to be read, there are %d to %d: it is read from %d",
                self._address,
                member.log,
                partition,
                wanted,
                first,
                end,
                first,
            )
        member.next_offsets[partition] = begin = max(first, wanted)
        consumer.incremental_unassign(member.places([partition]))
        consumer.incremental_assign([TopicPartition(member.log, partition, begin)])
        member.misplaced.discard(partition)

    def _look(self, member: _Member) -> None:
        """The driver has said that the log is not there; right after it was made, a server may not know it."""
        assert member.consumer is not None
        member.look_s = 0.0
        try:
            error = member.consumer.list_topics(member.log, ASK_S).topics[member.log].error
        except KafkaException as problem:
            self._failing = f"{self._address}: {member.log}: {told(error_of(problem))}"
            member.look_s = time.monotonic() + LOOK_S
            return
        if error is not None and error.code() in GONE:
            reason = f"{self._address}: shared log {member.log} is gone: it was deleted"
            self._post(partial(tell_gone, member, reason))
            self.leave(member)

    def leave(self, member: _Member) -> None:
        """Give up its partitions, after their positions; what Kafka takes to answer is nobody's time."""
        if member not in self._members:
            return
        self._members.remove(member)
        thread = Thread(target=self._end, args=(member,), name="kafka member leaves", daemon=True)
        self._leaving = [other for other in self._leaving if other.is_alive()] + [thread]
        thread.start()

    def _end(self, member: _Member) -> None:
        assert member.consumer is not None
        self._commit_now(member)
        with suppress(KafkaException):
            member.consumer.close()

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._failing:
            self._failing = f"{self._address}: {told(error)}"


def _tell_assigned(member: _Member, partition: int, stored: StoredPositions) -> None:
    if not member.closed:
        member.shared_taker.assigned(partition, stored)


def _tell_revoked(member: _Member, partition: int) -> None:
    if not member.closed:
        member.shared_taker.revoked(partition)
