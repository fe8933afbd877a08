"""One member of a shared subscription, and the partitions of the log that the group has given it.

What a group has in common, whoever reads for it, is a `GroupPartition`: how far it has come, and what nobody else may
get although it is not below that, its *claims*: QoS 2 under way to a session, and what was settled out of its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

from embermq.delivery.application.fed_lane import FedLane
from embermq.delivery.application.positions import Positions
from embermq.delivery.application.window import PackEntry
from embermq.model.application_positions import StoredPositions
from embermq.ports.application_feed import FeedEntry, SharedFeed, SharedTaker
from embermq.routing.router import Subscriber
from embermq.routing.shared_logs import SharedGroup
from embermq.sessions.session import Delivery, Session

if TYPE_CHECKING:
    from embermq.delivery.application.shared_readers import SharedReaders

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
