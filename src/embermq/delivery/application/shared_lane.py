"""One member of a shared subscription, and the partitions of the log that the group has given it.

What a group has in common, whoever reads for it, is a `GroupPartition`: how far it has come, and what nobody else may
get although it is not below that, its *claims*: QoS 2 under way to a session, and what was settled out of its turn.

QoS 2 that a session has under way from shared logs without their lanes: the client had it when it came, or its
partition went to another member since. It is sent and timed like a lane of its own, its number is its packet id.

What sessions have under way from logs of shared subscriptions, and what of it is stored. A mark stands for QoS 2,
with its message, from before it is sent until it is settled; for QoS 1 only once it is settled out of its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from typing import TYPE_CHECKING

from msgspec import Struct

from embermq.delivery.application.fed_lane import FedLane
from embermq.delivery.application.parking import Parking
from embermq.delivery.application.positions import Positions
from embermq.delivery.application.window import PackEntry, released_delivery
from embermq.formats.log_record import RecordError, decode_record, encode_record
from embermq.model.application_positions import StoredPositions
from embermq.model.session_writes import QueueState
from embermq.model.shared_logs import SharedMark
from embermq.ports.application_feed import FeedEntry, SharedFeed, SharedTaker
from embermq.routing.router import Subscriber
from embermq.routing.shared_logs import SharedGroup
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState

if TYPE_CHECKING:
    from embermq.delivery.application.shared_readers import SharedReaders


OWED_LOG = "owed"
"""The lane's name; no log is called so."""


def owed_delivery(mark: SharedMark) -> Delivery:
    """What is in store of a message under way, to be sent again."""
    if mark.state == QueueState.RELEASED:
        return released_delivery(mark.packet_id, mark.packet_id)
    try:
        message = decode_record(mark.record).message
    except RecordError:  # it cannot be sent again; a PUBREL brings it to its end
        return released_delivery(mark.packet_id, mark.packet_id)
    return Delivery(
        message,
        b"",
        mark.packet_id,
        2,
        mark.retain,
        mark.identifiers,
        0,
        mark.packet_id,
        application=True,
        dup=True,
    )


CLAIMS_LOOKED_AT = 256
"""Claims are looked through for old ones when there are so many more than before."""


class GroupPartition:
    """One partition of a group's log."""

    __slots__ = ("_look_at", "claims", "read_to", "stored")

    def __init__(self, stored: StoredPositions) -> None:
        self.stored = stored
        """Replaced, never changed: the thread that reads looks at it."""
        self.claims: set[int] = set()
        self.read_to = 0
        """No member of this run has read what stands there or behind."""
        self._look_at = CLAIMS_LOOKED_AT

    @property
    def reach(self) -> int:
        """Something is known of offsets below."""
        return max([self.stored.committed_offset, self.read_to, *(offset + 1 for offset in self.claims)])

    def claim(self, offset: int) -> None:
        """Keep an entry from all other members of the group."""
        if offset >= self.stored.committed_offset:
            self.claims.add(offset)

    def go_on(self, had: GroupPartition) -> None:
        """All that is known still holds."""
        self.stored, self.claims, self.read_to = had.stored, had.claims, had.read_to

    def take_over(self, had: GroupPartition, end: int) -> None:
        """What is known of offsets below `end`, where the log now ends."""
        at = had.stored
        self.stored = StoredPositions(min(at.base_offset, end), min(at.committed_offset, end), at.floors)
        self.claims = {offset for offset in had.claims if offset < end}

    def come_to(self, stored: StoredPositions) -> None:
        """All members begin there from now on."""
        self.stored = stored
        if len(self.claims) > self._look_at:
            self.claims = {offset for offset in self.claims if offset >= stored.committed_offset}
            self._look_at = len(self.claims) + CLAIMS_LOOKED_AT


class ShareGroup:
    """A shared subscription, as its members see it."""

    def __init__(self, shared: SharedGroup, stored: Mapping[int, StoredPositions]) -> None:
        self.shared = shared
        self.generation = shared.row.generation
        starts = {partition: StoredPositions(start, start) for partition, start in shared.row.starts}
        self.partitions = {number: GroupPartition(at) for number, at in (starts | dict(stored)).items()}

    def known(self, partition: int) -> StoredPositions | None:
        """Where to read from. May be called by any thread."""
        found = self.partitions.get(partition)
        return found.stored if found is not None else None

    def committed(self) -> dict[int, int]:
        """Of each partition: below this offset all is settled."""
        return {number: partition.stored.committed_offset for number, partition in self.partitions.items()}

    def reach(self) -> dict[int, int]:
        """Of each partition: something is known of offsets below."""
        return {number: partition.reach for number, partition in self.partitions.items()}

    def lane_name(self, partition: int) -> str:
        """Of whoever reads this partition."""
        return f"{self.generation}/{partition}"

    def lane_names(self) -> list[str]:
        """Names of the lanes of all partitions that are known here."""
        return [self.lane_name(partition) for partition in self.partitions]

    def partition(self, number: int, told: StoredPositions | None = None) -> GroupPartition:
        """The one with this number; of one that nothing is known of, what the store of the logs has told. Floors may
        speak of another message log there."""
        found = self.partitions.get(number)
        if found is None:
            at = told or StoredPositions()
            stored = StoredPositions(at.base_offset, at.committed_offset)
            found = self.partitions[number] = GroupPartition(stored)
        return found


class SharedLane(FedLane):
    """One partition that a member reads."""

    __slots__ = ("member", "packed_from", "partition", "qos2")

    def __init__(self, member: Member, number: int, begun: StoredPositions) -> None:
        group = member.group
        partition = group.partition(number, begun)
        stored = partition.stored
        committed = stored.committed_offset
        positions = Positions(StoredPositions(begun.base_offset, committed, stored.floors))
        log = group.shared.log.name
        super().__init__(member.session, log, positions, number=number, name=group.lane_name(number))
        self.member = member
        self.partition = partition
        self.qos2: deque[int] = deque()
        """Offsets above the floor whose marks are in store."""
        self.packed_from = 0
        """Where the last pack began."""

    def receive(self, entries: list[FeedEntry]) -> int:
        freed = super().receive(entries)
        self.partition.read_to = max(self.partition.read_to, self.read_to)
        return freed

    @property
    def claims(self) -> Set[int]:
        return self.partition.claims

    def wanted(self, entry: FeedEntry) -> PackEntry | None:
        record, source, member = entry.record, entry.source, self.member
        if record is None or source is None or source < member.group.shared.row.since:
            return None
        return PackEntry(
            entry.offset,
            record.message,
            member.qos,
            member.retain_as_published,
            member.identifiers,
            entry.size,
            source,
        )

    def unreadable(self, offset: int, source: int, problem: str) -> None:
        self.member.readers.unreadable(self, offset, problem)

    def unsent(self) -> list[Delivery]:
        """What the client has not been sent: it waits for the socket, or is being stored."""
        found = list(self.outbox)
        if self.sending:
            found += [delivery for delivery in self.pending if delivery.offset >= self.packed_from]
        return [one for one in found if not (one.settled or one.dup or one.released)]


class Member(SharedTaker):
    """A connected session's part in a group."""

    def __init__(self, readers: SharedReaders, group: ShareGroup, subscriber: Subscriber) -> None:
        self.readers = readers
        self.group = group
        self.session: Session = subscriber.session
        self.lanes: dict[int, SharedLane] = {}
        self.feed: SharedFeed
        self.under_way = 0
        """What was sent and is not settled."""
        self.turn = 0
        self.takes(subscriber)

    def takes(self, subscriber: Subscriber) -> None:
        """The options of its subscription from now on."""
        self.subscriber = subscriber
        self.qos = subscriber.qos
        self.retain_as_published = subscriber.retain_as_published
        self.identifiers = (subscriber.identifier,) if subscriber.identifier else ()

    def assigned(self, partition: int, stored: StoredPositions) -> None:
        lane = self.lanes[partition] = SharedLane(self, partition, stored)
        self.readers.begins_lane(lane)

    def revoked(self, partition: int) -> None:
        lane = self.lanes.pop(partition, None)
        if lane is not None:
            self.readers.ends_lane(lane)

    def take(self, partition: int, entries: list[FeedEntry]) -> None:
        lane = self.lanes.get(partition)
        if lane is None:
            self.feed.release(sum(entry.size for entry in entries))
            return
        freed = lane.receive(entries)
        if freed:
            self.feed.release(freed)
        self.readers.came(self)

    def gone(self, reason: str) -> None:
        self.readers.gone(self, reason)


class Sent(Struct, eq=False):
    """One message under way to a session. `lane` is None when it comes from a connection before, or its partition is
    another member's; `offset` is that in the partition."""

    delivery: Delivery
    group: int
    partition: int
    offset: int
    lane: SharedLane | None


class SharedInFlight:
    """The messages in flight from shared logs, of all connected sessions, by packet id. `claim` is told of what
    nobody else of a group may get: the group's generation, partition and offset."""

    def __init__(self, state: BrokerState, parking: Parking, claim: Callable[[int, int, int], None]) -> None:
        self._state = state
        self._parking = parking
        self._claim = claim
        self._sent: dict[Session, dict[int, Sent]] = {}

    # Connections

    def begin(self, session: Session, marks: Iterable[SharedMark]) -> list[Delivery]:
        """The client is connected; returns what the marks stand for, to be sent again."""
        sent = self._sent[session] = {}
        for mark in marks:
            delivery = owed_delivery(mark)
            sent[mark.packet_id] = Sent(delivery, mark.group, mark.partition, mark.offset, None)
        return [one.delivery for one in sent.values()]

    def end(self, session: Session) -> None:
        """The client is gone: what is to be known then is in store."""
        self._sent.pop(session, None)

    # What is sent, and what becomes of it

    def mark(self, session: Session, delivery: Delivery, state: int) -> None:
        """See `Journal`."""
        sent = self.of(session, delivery)
        if sent is None:
            return
        if state == QueueState.DONE:
            self.done(session, sent)
        else:
            self._write(sent, session.generation, state)

    def sent(self, lane: SharedLane, delivery: Delivery) -> None:
        """See `Journal`."""
        sents = self._sent.get(lane.session)
        if sents is None:
            return
        group = lane.member.group.generation
        before = sents.get(delivery.packet_id)
        if before is not None and before.lane is not None:
            before.lane.member.under_way -= 1  # it was parked, skipped or too large
        sent = sents[delivery.packet_id] = Sent(delivery, group, lane.number, delivery.offset, lane)
        lane.member.under_way += 1
        if delivery.qos == 2:
            lane.qos2.append(delivery.offset)
            self._write(sent, lane.session.generation, QueueState.SENT, encode_record(delivery.message, b""))

    def store_anew(self, session: Session) -> None:
        """What it has of QoS 2: the store has lost it."""
        for sent in self._sent.get(session, {}).values():
            delivery = sent.delivery
            if delivery.qos != 2 or delivery.settled:
                continue
            self._write(sent, session.generation, QueueState.SENT, encode_record(delivery.message, b""))
            if delivery.released:
                self._write(sent, session.generation, QueueState.RELEASED)

    def _write(self, sent: Sent, session: int, state: int, record: bytes = b"") -> None:
        delivery = sent.delivery
        mark = SharedMark(
            sent.group,
            sent.partition,
            sent.offset,
            session,
            delivery.packet_id,
            state,
            record,
            delivery.identifiers,
            delivery.retain,
        )
        self._state.tick.writes.shared.marks.append(mark)

    def done(self, session: Session, sent: Sent, *, is_kept: bool = False) -> None:
        """Settled, and nobody else shall get it; or `is_kept` by its session, which is stored first. Its packet id may
        be another message's from now on."""
        if sent.lane is None:
            self._parking.sender.forget_attempts(session, OWED_LOG, sent.delivery.packet_id)
        self._claim(sent.group, sent.partition, sent.offset)
        with_session = is_kept or sent.delivery.qos == 2
        self._write(sent, session.generation if with_session else 0, QueueState.DONE)

    def of(self, session: Session, delivery: Delivery) -> Sent | None:
        """None when it does not come from a shared log."""
        sents = self._sent.get(session)
        sent = sents.get(delivery.packet_id) if sents else None
        return sent if sent is not None and sent.delivery is delivery else None

    def forget(self, session: Session, delivery: Delivery) -> None:
        """Forget a message that is under way no more."""
        del self._sent[session][delivery.packet_id]

    def count(self, member: Member) -> None:
        """What was parked, skipped or too large is not under way any more, and nobody has said so."""
        sents = self._sent[member.session]
        for packet_id, sent in list(sents.items()):
            if sent.lane is not None and sent.lane.member is member and sent.delivery.settled:
                del sents[packet_id]
                member.under_way -= 1

    # Its partition goes, or its member

    def take_back(self, lane: SharedLane, delivery: Delivery) -> None:
        """It was not sent: it is the next member's, and its packet id is free."""
        session = lane.session
        if session.window.get(delivery.packet_id) is not delivery:
            return
        del session.window[delivery.packet_id]
        delivery.settled = True
        if self._sent.get(session, {}).pop(delivery.packet_id, None) is not None:
            lane.member.under_way -= 1

    def keep(self, lane: SharedLane) -> list[Delivery]:
        """Its partition goes: what is under way of QoS 2 stays with the session, and nobody else shall get it."""
        kept: list[Delivery] = []
        for sent in self._sent.get(lane.session, {}).values():
            if sent.lane is lane and sent.delivery.qos == 2 and not sent.delivery.settled:
                lane.partition.claim(sent.offset)
                lane.member.under_way -= 1
                sent.lane = None
                kept.append(sent.delivery)
        return kept

    def leave_to_queue(self, member: Member) -> None:
        """It has unsubscribed: QoS 1 that has been sent is owed without the subscription, also when the client goes and
        comes again [MQTT-3.10.4-3]; from now on it is the device queue's."""
        for sent in list(self._sent.get(member.session, {}).values()):
            if sent.lane is not None and sent.lane.member is member:
                self._leave(member.session, sent)

    def outlive_log(self, group: int, lost: Mapping[int, int]) -> None:
        """What stood at these offsets of the group's partitions and behind is not in the log any more: QoS 1 that has
        been sent can come from nowhere else, so it is stored at once."""
        for session, sents in self._sent.items():
            gone = [
                sent
                for sent in sents.values()
                if sent.group == group and sent.partition in lost and sent.offset >= lost[sent.partition]
            ]
            for sent in gone:
                self._leave(session, sent)
            if gone:
                self._state.path(session).write_down(session)

    def _leave(self, session: Session, sent: Sent) -> None:
        delivery = sent.delivery
        packet_id = delivery.packet_id
        if delivery.qos != 1 or delivery.settled:
            return
        del self._sent[session][packet_id]
        self.done(session, sent, is_kept=True)
        session.window[packet_id] = Delivery(
            delivery.message,
            encode_record(delivery.message, b""),
            -1,
            1,
            delivery.retain,
            delivery.identifiers,
            0,
            packet_id,
        )
