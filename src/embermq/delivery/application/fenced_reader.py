"""The lane of a client whose log the pipeline writes, beside the message log's tail.

Which way each record comes to a client that has both: the message log's tail, and the pipeline's copies in its own
log, which come later, in an order of their own, and perhaps twice.

Told by source positions alone. What the tail has served is ranges of them: all that is the client's between their
ends was sent, or had come by the log. So a copy from within one is a repeat, but for what is not settled yet: that is
`early` until its copy comes. The copy gives it a place in the client's log, and from then on it is a delivery like any
other: marked, timed, and the committed offset waits for it.

The tail serves from its begin on, when the log has brought everything before. From then on whichever brings a record
first sends it, and the other passes over it: first copies of one topic stand in the order of their positions, so
neither overtakes the other. When the tail ends, for want of room or with the connection, the log goes on with what
stands next in it. What waits in the log's lane for the client has not come in this sense: it is judged when it is its
turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from embermq.delivery.application.fed_lane import FedReader, StartPosition
from embermq.delivery.application.lane import NOTHING, UNMARKED_MAX
from embermq.delivery.application.log_tail import LogTail, TailsEnd
from embermq.delivery.application.window import PackEntry, released_delivery
from embermq.model.application_positions import EarlyMark, ReaderPosition
from embermq.model.position import OFFSET_END, offset_of, partition_of
from embermq.model.tick_writes import TickWrites
from embermq.mqtt.value import replace
from embermq.ports.application_feed import FeedEntry
from embermq.sessions.packet_ids import reserve_packet_id
from embermq.sessions.session import Delivery, Session
from embermq.sessions.tick import Tick

if TYPE_CHECKING:
    from embermq.delivery.application.fed_readers import FedReaders


RANGES_MAX = 256
"""With more of them the tail does not serve: floors rise, and forget them."""

Ranges = tuple[tuple[int, int], ...]


class Way(Enum):
    """What to do with a copy."""

    SEND = "send"
    """It may be a repeat still: what the log itself has brought is known elsewhere (`positions`)."""
    BIND = "bind"
    """It was sent before, and is not settled."""
    REPEAT = "repeat"


class TailFence:
    """Of one connection; `served` is what was stored before it."""

    def __init__(self, served: Ranges = ()) -> None:
        self.early: dict[int, Delivery] = {}
        """By source position: sent by the tail, not settled, its copy has not come."""
        self._past = list(served)
        self._start = self.taken_to = 0
        """The present range."""
        self.serves = False

    # The tail

    def serve(self, begin: int) -> bool:
        """The log has brought everything below `begin`, and all of it was sent: the tail, which has what follows, goes
        on."""
        if len(self._past) < RANGES_MAX:
            self.serves = True
            self._start = self.taken_to = max(begin, self.taken_to)
        return self.serves

    def passed(self, taken_to: int) -> None:
        """All below is sent, or is not to be: it has come by the log, or nobody wants it any more."""
        self.taken_to = max(self.taken_to, taken_to)

    def stop(self) -> None:
        """The tail serves no more, until it may again."""
        if self.serves and self._start < self.taken_to:
            self._past.append((self._start, self.taken_to))
        self.serves = False

    # The log

    def judge(self, source: int) -> Way:
        """The copy that is next in the client's log."""
        if source in self.early:
            return Way.BIND
        return Way.REPEAT if any(start <= source < end for start, end in self.served()) else Way.SEND

    # The store

    @property
    def remembers(self) -> bool:
        """Whether there are ranges that floors may forget."""
        return bool(self._past)

    def forget(self, is_below_floors: Callable[[int], bool]) -> None:
        """Floors have risen: what is below them is a repeat in any case."""
        self._past = [one for one in self._past if not is_below_floors(one[1] - 1)]

    def served(self) -> Ranges:
        """Ranges of positions that are served, [start, end) each, as they are stored."""
        present = ((self._start, self.taken_to),) if self.serves and self._start < self.taken_to else ()
        return (*self._past, *present)


class FencedReader(FedReader):
    """Entries are judged when it is their turn, not when they come: what still waits has not come for the tail.

    What a connection before has sent early waits for its copy with its packet id, which nothing else gets, and is sent
    again with that. All that has to be known of it stands in the store, in the row of the place.
    """

    __slots__ = (
        "_asked",
        "_caught_up",
        "_first",
        "_is_new",
        "_marks",
        "_marks_of",
        "_nothing_below",
        "_tick",
        "changed",
        "fence",
    )

    def __init__(
        self, readers: FedReaders, session: Session, log: str, standing: StartPosition, tick: Tick
    ) -> None:
        super().__init__(readers, session, log, standing)
        self._tick = tick
        place, bound = standing.place, {mark.source for mark in standing.marks}
        self.fence = TailFence(place.served)
        self._marks = {source: mark for source, mark in place.early.items() if source not in bound}
        self._marks_of: TickWrites | None = None
        """What may have `_marks`: behind it they are others."""
        self.fence.early = {source: _before(source, mark) for source, mark in self._marks.items()}
        self.changed = len(self._marks) < len(place.early)
        """What is to be stored, and has not been asked for."""
        self._first = 0
        """Nothing of its log stands before it any more."""
        self._is_new = standing.is_new
        self._nothing_below = -1
        """Nothing that is the client's stands below this position of the message log."""
        self._caught_up: Mapping[int, int] = {}
        """Below these offsets of the message log everything that is the client's has been sent, or was before."""
        self._asked: tuple[Mapping[int, int], int] | None = None
        """What the pipeline has reported, and where the log ended then: that has not been reached."""

    # A connection begins

    def begin(self, end: TailsEnd, log_end: int) -> list[Delivery]:
        """Nothing was sent on it yet; returns what is to be resent of what was early."""
        self.tail = LogTail(end, log_end, is_early=True)
        if self._is_new:
            self._nothing_below = log_end
        released: list[Delivery] = []
        for delivery in self.fence.early.values():
            if delivery.released:
                released.append(delivery)
            else:
                reserve_packet_id(self.session, delivery)
        return released

    # The log

    def receive(self, entries: list[FeedEntry]) -> int:
        freed = 0
        for entry in entries:
            packed = self._packed(entry)
            if packed is None:
                freed += entry.size
                continue
            self.waiting.append(packed)
        self.read_to = entries[-1].offset + 1
        return freed

    def begins(self, partition: int, first: int) -> None:
        self._first = first

    def pass_over(self) -> tuple[list[tuple[int, Delivery]], int]:
        """Let go of what is next and needs no room; returns what got its place in the log, with its position in the
        message log, and the bytes that the feed may bring more."""
        self._serves()
        bound: list[tuple[int, Delivery]] = []
        freed = 0
        while self.waiting:
            entry = self.waiting[0]
            way = self._way(entry)
            if way is Way.SEND:
                break
            self.waiting.popleft()
            freed += entry.size
            self.positions.skip(entry.offset)
            if way is Way.BIND:
                delivery = self._take_early(entry.source)
                delivery.offset = entry.offset
                self.pending.append(delivery)
                bound.append((entry.source, delivery))
        self.follow()
        return bound, freed

    def _way(self, entry: PackEntry) -> Way:
        source = entry.source
        way = self.fence.judge(source)
        if way is Way.BIND:
            return Way.SEND if self._is_reserved(self.fence.early[source]) else way
        if way is Way.SEND and self.positions.has(source):
            return Way.REPEAT
        return way

    def _is_reserved(self, delivery: Delivery) -> bool:
        """Whether it was not sent on this connection, and not answered late."""
        reserved = self.session.reserved
        return reserved is not None and reserved.get(delivery.packet_id) is delivery

    def follow(self) -> None:
        """What is not waiting has been sent or passed, and what waits is in order."""
        passed_to = self.waiting[0].offset if self.waiting else max(self.read_to, self._first)
        self.next_offset = max(self.next_offset, passed_to)
        if self._asked is not None and passed_to >= self._asked[1]:
            self._caught_up, self._asked = self._asked[0], None

    # What may be sent

    @property
    def has_more(self) -> bool:
        tail = self.tail
        return tail is not None and self.fence.serves and tail.has_more(self.fence.taken_to)

    def fill(self, limit: int) -> bool:
        if self.waiting and self._way(self.waiting[0]) is Way.SEND:
            return True
        return self._serves() and self.has_more and len(self.fence.early) < UNMARKED_MAX

    def _serves(self) -> bool:
        """Whether the tail goes on for the log."""
        fence, tail = self.fence, self.tail
        if tail is None:
            return False
        if fence.serves and tail.begin > fence.taken_to:
            fence.stop()
        return fence.serves or (self._has_caught_up(tail.begin) and fence.serve(tail.begin))

    def _has_caught_up(self, begin: int) -> bool:
        """With everything below `begin`."""
        if begin <= self._nothing_below:
            return True
        newest = partition_of(begin)
        caught_up = self._caught_up
        return (
            bool(caught_up)
            and all(caught_up.get(partition, 0) >= OFFSET_END for partition in range(newest))
            and caught_up.get(newest, 0) >= offset_of(begin)
        )

    def next_pack(self, room: int, bytes_max: int) -> tuple[list[PackEntry], int]:
        pack: list[PackEntry] = []
        size = 0
        waiting = self.waiting
        while waiting and len(pack) < room and size < bytes_max and self._way(waiting[0]) is Way.SEND:
            entry = waiting.popleft()
            size += entry.size
            is_due = self.is_due(entry)
            if is_due or entry.source in self.fence.early:
                pack.append(entry)
        tail = self.tail
        if not size and tail is not None and self._serves():
            limit = min(room, UNMARKED_MAX - len(self.fence.early))
            found, end = tail.take(self.fence.taken_to, limit)
            self.fence.passed(end)
            pack = [one for one in found if not self.positions.has(one.source)]
        return pack, size

    def add(self, delivery: Delivery) -> None:
        if delivery.offset >= 0:
            super().add(delivery)
        elif not delivery.settled:
            self.fence.early[~delivery.offset] = delivery
            self.mark_early(delivery)

    def kept_id(self, source: int) -> int:
        """It is sent again, and has its place in the log now."""
        if source not in self.fence.early:
            return 0
        delivery = self._take_early(source)
        assert self.session.reserved is not None
        del self.session.reserved[delivery.packet_id]
        return delivery.packet_id

    # What is early

    def mark_early(self, delivery: Delivery) -> None:
        """As it is now; once it is settled its copy is a repeat."""
        source = ~delivery.offset
        if delivery.settled:
            self._take_early(source)
            self.settled += 1
        else:
            mark = EarlyMark(delivery.packet_id, delivery.qos, delivery.released)
            self._changing_marks()[source] = mark

    def _take_early(self, source: int) -> Delivery:
        del self._changing_marks()[source]
        return self.fence.early.pop(source)

    def _changing_marks(self) -> dict[int, EarlyMark]:
        """What a tick was handed is never touched afterwards: the first change in another one is made in a copy."""
        writes = self._tick.writes
        if self._marks_of is not writes:
            self._marks, self._marks_of = dict(self._marks), writes
        self.changed = True
        return self._marks

    # The store

    @property
    def wants_report(self) -> bool:
        return not self.fence.serves or self.fence.remembers or super().wants_report

    def hear(self, reported: Mapping[int, int], end: int) -> None:
        super().hear(reported, end)
        if self._asked is None:
            self._asked = reported, end
        self.follow()

    def stored_place(self) -> ReaderPosition:
        self.changed = False
        self.fence.forget(self.positions.is_below_floors)
        return replace(super().stored_place(), served=self.fence.served(), early=self._marks)


def _before(source: int, mark: EarlyMark) -> Delivery:
    """Sent on a connection before."""
    if mark.is_released:
        return released_delivery(~source, mark.packet_id, source)
    return Delivery(
        NOTHING, b"", ~source, mark.qos, False, (), 0, mark.packet_id, application=True, source=source
    )
