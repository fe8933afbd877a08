"""The sliding window over an application log, wherever that log is kept.

A pack is what there is room for. The offset and packet id of a PUBLISH are stored, so that after a crash the same ids
are resent with DUP. QoS 2 waits for that and is not overtaken; QoS 1 does not (`unmarked`). The window slides: one that
is acknowledged late holds up the floor, not the client.
The floor, below which everything is settled, is the contiguous acknowledged prefix; what was settled above it is
remembered one by one and never sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, Protocol

from msgspec import Struct

from embermq.delivery.application.lane import NOTHING, LaneOwner, LogLane
from embermq.delivery.application.parking import Parking
from embermq.delivery.sending import is_denied, send_pubrel
from embermq.model.message import Message
from embermq.model.session_writes import QueueState
from embermq.model.unacknowledged import WhyUnacknowledged
from embermq.sessions.link import Link
from embermq.sessions.packet_ids import next_packet_id
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState

DRAIN_AGAIN_MS = 500
"""While the store takes nothing, a client whose next message needs it is looked at again after so long."""
UNSTORED_MAX = 10_000
"""Marks that may wait in memory meanwhile; then nothing more is sent."""
IDLE_FLOOR_MS = 1_000
"""How often the floor of a client that has nothing to do follows the log."""


class PackEntry(Struct, frozen=True, gc=False):
    """One record of a pack with what was stamped on it. `size` is what it counts in its feed, `source` its position in
    the message log, -1 when that is not known. An `offset` of `~source`: the client's log has not brought it
    yet."""

    offset: int
    message: Message
    qos: int
    retain_as_published: bool
    identifiers: tuple[int, ...]
    size: int = 0
    source: int = -1


class Journal(Protocol):
    """What the window wants stored with the present tick."""

    def sent(self, lane: LogLane, delivery: Delivery, entry: PackEntry) -> None:
        """An entry is about to be sent."""

    def mark(self, session: Session, delivery: Delivery, state: int) -> None:
        """An entry above the floor is released, or settled out of its turn (`QueueState`); or one that has no place in
        its log yet."""

    def floor(self, lane: LogLane) -> None:
        """Everything below `lane.floor` is settled."""

    def unacknowledged(self, lane: LogLane, source: int, why: WhyUnacknowledged) -> None:
        """An entry is about to be settled without an acknowledgement: its position in the message log, -1 when that is
        not known."""


class SlidingWindow(LaneOwner):
    """Slides the windows of all lanes of one journal. `refill` is called when a lane of the session may take its next
    pack."""

    def __init__(
        self, state: BrokerState, journal: Journal, refill: Callable[[Session], None], parking: Parking
    ) -> None:
        self._state = state
        self._journal = journal
        self._refill = refill
        self._parking = parking
        self._sender = parking.sender
        self._unmarked = parking.sender.unmarked
        self._pack_max = parking.settings.max_poll_records
        self._resting: set[Session] = set()

    # Connections

    def begin(self, lane: LogLane, link: Link) -> None:
        """The client is connected: `lane.pending` is what it had under way, and is resent by now or waits in
        `session.resend`. A client's own log comes before its others."""
        if not lane.name:
            self._parking.resume(lane.session, link)
        self._sender.begin(lane, link, self)

    def end(self, lane: LogLane) -> None:
        """The client is gone: its state is in store already."""
        self._sender.end(lane)
        if not lane.name:
            self._parking.suspend(lane.session)

    # Packs

    def room(self, lane: LogLane, link: Link) -> int:
        """How many entries may be read now; `refill` is called when that changes. 0 while the socket takes nothing,
        while something is to be sent before, and when the client has all that it may have unacknowledged, or all that
        it may get in a second."""
        session = lane.session
        if link.closing or link.paused or lane.sending or session.resend:
            return 0
        if lane.outbox and not self._sender.drain(lane, link):
            return 0
        if self._parking.waits(session):
            self._parking.feed(session, link)
            if self._parking.is_storing(session) and not self._state.drains:
                return 0
        room = min(session.window_max - len(session.window), self._pack_max, self._unmarked.room(session))
        if room <= 0:
            return 0
        share = self._sender.share(session, room)
        if not share:
            self._rest(session, self._sender.rest_ms(session))
        return share

    def _rest(self, session: Session, rest_ms: int) -> None:
        """Read on after a while."""
        if session not in self._resting:
            self._resting.add(session)
            self._state.timers.at(self._state.tick.now_ms + rest_ms, partial(self._rested, session))

    def _rested(self, session: Session) -> None:
        self._resting.discard(session)
        self._refill(session)

    def send_pack(self, lane: LogLane, link: Link, entries: Iterable[PackEntry]) -> None:
        """Send the next entries: at once those before the first of QoS 2, the others as soon as their packet ids are in
        store. `refill` is called then."""
        session = lane.session
        now_ms = self._state.tick.now_ms
        pack: list[Delivery] = []
        sure = 0
        for entry in entries:
            kept = lane.kept_id(entry.source)
            why = 0 if kept else self._why_withheld(session, entry.message, now_ms)
            if why:
                self._journal.unacknowledged(lane, entry.source, why)
                lane.add(settled_delivery(entry.offset))
                continue
            delivery = log_delivery(entry, kept or next_packet_id(session))
            delivery.dup = kept > 0
            session.window[delivery.packet_id] = delivery
            lane.add(delivery)
            self._journal.sent(lane, delivery, entry)
            sure += sure == len(pack) and delivery.qos == 1
            pack.append(delivery)
        self._advance_floor(lane)
        if not pack:
            return
        self._sender.used(session, len(pack))
        self._unmarked.add(session, len(pack))
        if sure:
            self._sender.send_new(lane, link, pack[:sure])
        lane.sending = sure < len(pack)
        marked = partial(self._marked, lane, link, len(pack), pack[sure:])
        self._state.tick.batch.when_stored(session.generation, marked)

    def drainable(self, session: Session, room: int, waiting: Iterable[PackEntry]) -> int:
        """How many of the next entries may be sent: while the store takes nothing those of QoS 1, although their packet
        ids are not in store. After a crash they come again. `refill` is called when that may have changed."""
        if not self._state.drains:
            return room
        room = min(
            room, UNSTORED_MAX - sum(len(one.application_marks) for one in self._state.tick.unstored())
        )
        for count, entry in enumerate(waiting):
            if count >= room or min(entry.message.qos, entry.qos) == 2:
                room = count
                break
        if room <= 0:
            self._rest(session, DRAIN_AGAIN_MS)
        return room

    def _why_withheld(
        self, session: Session, message: Message, now_ms: int
    ) -> Literal[0] | WhyUnacknowledged:
        """Why nobody wants it any more, or the client may not have it any more; 0 when it is to be sent."""
        counters = self._state.counters
        if message.is_expired(now_ms):
            counters.dropped_expired += 1
            return WhyUnacknowledged.EXPIRED
        if session.permissions is not None and is_denied(session, message, counters):
            return WhyUnacknowledged.DENIED
        return 0

    def _marked(self, lane: LogLane, link: Link, count: int, rest: list[Delivery]) -> None:
        """The packet ids of so many are durable, of the rest that waits for that among them."""
        session = lane.session
        may_go_on = self._unmarked.stored(session, count)
        if session.link is not link or link.closing:
            return
        if rest:
            lane.sending = False
            may_go_on = self._sender.send_new(lane, link, rest)
        if may_go_on:
            self._refill(session)

    # What becomes of them

    def dropped(self, lane: LogLane, delivery: Delivery) -> None:
        self._journal.unacknowledged(lane, delivery.source, WhyUnacknowledged.TOO_LARGE)
        self._settle(lane, delivery)

    def give_up(self, lane: LogLane, deliveries: list[Delivery], *, keep: bool) -> list[Delivery]:
        session = lane.session
        kept: list[Delivery] = []
        for delivery in deliveries:
            if not keep:
                self._parking.skip(session, delivery)
            elif not self._parking.park(session, delivery):
                kept.append(delivery)
                continue
            why = WhyUnacknowledged.PARKED if keep else WhyUnacknowledged.SKIPPED
            self._journal.unacknowledged(lane, delivery.source, why)
            self._settle(lane, delivery)
        count = len(deliveries) - len(kept)
        if not keep:
            self._state.counters.application_skipped += count
        elif count:
            self._parking.say_parked(session, count)
        # Not before the next tick: who is called now is in the middle of its lanes. Nothing stored is waited for.
        self._state.tick.batch.after_log.append(partial(self._state.durable.writable, session))
        return kept

    def settle(self, lane: LogLane, delivery: Delivery) -> None:
        """It needs no acknowledgement any more. One that is parked or skipped may come with any lane of its session."""
        if delivery.seq:
            self._parking.settled(lane.session, delivery)
        else:
            self._settle(lane, delivery)

    def _settle(self, lane: LogLane, delivery: Delivery) -> None:
        """The floor moves, or the store remembers this one."""
        if lane.pending and lane.pending[0] is delivery:
            self._advance_floor(lane)
        else:
            self._journal.mark(lane.session, delivery, QueueState.DONE)

    def _advance_floor(self, lane: LogLane) -> None:
        pending = lane.pending
        floor = lane.floor
        while pending and pending[0].settled:
            delivery = pending.popleft()
            floor = delivery.offset + 1
            lane.settled += delivery.packet_id > 0  # the others were passed over
        if floor != lane.floor:
            self._write_floor(lane, floor)

    def _write_floor(self, lane: LogLane, floor: int) -> None:
        lane.floor = floor
        lane.floor_written_ms = self._state.tick.now_ms
        self._journal.floor(lane)

    def follow_idle(self, lane: LogLane) -> None:
        """Nothing is pending: what the log holds below the read position is not for this client."""
        now_ms = self._state.tick.now_ms
        if (
            not lane.pending
            and lane.next_offset > lane.floor
            and not 0 <= now_ms - lane.floor_written_ms < IDLE_FLOOR_MS
        ):
            self._write_floor(lane, lane.next_offset)

    def released(self, session: Session, delivery: Delivery) -> None:
        """PUBREC came; PUBREL leaves at once when that is durable, not with the next pack."""
        if delivery.seq:
            self._parking.released(session, delivery)
            return
        self._journal.mark(session, delivery, QueueState.RELEASED)
        if session.link is not None:
            release = partial(self._release, session, session.link, delivery)
            self._state.tick.batch.when_stored(session.generation, release)

    def _release(self, session: Session, link: Link, delivery: Delivery) -> None:
        if session.link is link:
            send_pubrel(link, delivery)


def log_delivery(entry: PackEntry, packet_id: int) -> Delivery:
    """An entry on its way to the client."""
    message = entry.message
    qos = min(message.qos, entry.qos)
    retain = message.retain and entry.retain_as_published
    return Delivery(
        message,
        b"",
        entry.offset,
        qos,
        retain,
        entry.identifiers,
        0,
        packet_id,
        application=True,
        source=entry.source,
    )


def settled_delivery(offset: int, packet_id: int = 0) -> Delivery:
    """Keeps the place of an entry that is not sent, or not again."""
    return Delivery(NOTHING, b"", offset, 0, False, (), 0, packet_id, application=True, settled=True)


def released_delivery(offset: int, packet_id: int, source: int = -1) -> Delivery:
    """A QoS 2 message that the client has: its PUBREL is owed, the message itself is not needed any more."""
    return Delivery(
        NOTHING, b"", offset, 2, False, (), 0, packet_id, application=True, released=True, source=source
    )
