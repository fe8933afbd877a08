"""Messages that other nodes have taken come to the sessions of this one.

Each node reads the logs of all others. What a kept session here wants, or what is retained, gets a record in this
node's own log, as if a client of this node had published it: from there on all goes its usual way, and is safe from the
death of this node by what makes everything else safe. The record says which one it is a copy of, so that after a crash
nothing is copied twice. What only sessions want that end with their connection is delivered and not recorded.

Copies follow the order of the log that they come from. One piece of a log is taken after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct

from embermq.formats.log_record import (
    FIELD_REPLAYED,
    LogRecord,
    RecordError,
    decode_record,
    is_addressed,
    slot_field,
    slot_in,
)
from embermq.intake.publishing import HELD_UP, REPEATS_UNSTORED, Publishing
from embermq.model.message import Message
from embermq.mqtt.value import replace
from embermq.mqtt.wire.reason_codes import FIRST_ERROR
from embermq.ports.peer_logs import PeerRecords
from embermq.routing.queue_target import QUEUE_PREFIX, QueueAim, QueueTarget
from embermq.routing.retained import RetainOrder, RetainSources
from embermq.routing.router import NO_MATCH
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted, Copied

RETRY_MS = 100
"""A message that the log takes later is tried again after that."""
Noted = Callable[[int, int, int], None]


NOWHERE = 1 << 63


class _Piece(Struct):
    """`next` is the index of the record that is to be taken; `is_recorded` tells whether one of them has a record."""

    slot: int
    found: PeerRecords
    then: Callable[[], None]
    next: int = 0
    seen: int = 0
    """All before this index have been taken once: whoever keeps nothing has got them."""
    is_recorded: bool = False
    back: int = NOWHERE
    """The first position whose record could not be stored."""

    def take_back(self, position: int) -> None:
        """A record of it could not be stored."""
        self.back = min(self.back, position)


class Inflow:
    """`copied` has by slot the position up to which records of it are in this node's log already. `noted` is called
    with a slot, the position up to which all of it is done, and the end of this node's log then: copies of what is
    above the one stand above the other."""

    def __init__(
        self, state: BrokerState, publishing: Publishing, slot: int, copied: Mapping[int, int], noted: Noted
    ) -> None:
        self._state = state
        self._publishing = publishing
        self._copied = dict(copied)
        self._publishers = RetainSources(state)
        self._noted = noted
        self._order = state.share.retain_order = RetainOrder(slot, partial(_held, state, slot))
        self.busy: set[int] = set()
        """Slots of which a piece is being taken."""
        self.copies = 0
        """Messages of others that got a record here."""
        self.delivered = 0
        """Those that were delivered without one."""
        self.taken: dict[int, int] = {}
        """Both, by slot."""
        self.refused = 0
        """Those that this node's log does not take."""

    def take(self, slot: int, found: PeerRecords, then: Callable[[], None]) -> None:
        """Take a piece of a slot's log; `then` is called when all of it is done or in this node's log. One piece of a
        slot at a time."""
        self._state.tick.wake()
        self.busy.add(slot)
        self._go_on(_Piece(slot, found, then))

    def take_unstored(self, frame: bytes) -> None:
        """Take a message of QoS 0 that a client of another node has published."""
        state = self._state
        state.tick.wake()
        record = _own_record(state, frame, "a message of another node")
        if record is not None and not record.message.is_expired(state.tick.now_ms):
            self._publishing.publish_unstored(record.message)

    def _go_on(self, piece: _Piece) -> None:
        records = piece.found.records
        while piece.next < len(records):
            position, frame = records[piece.next]
            if position >= self._copied.get(piece.slot, 0) and not self._take(piece, position, frame):
                state = self._state
                state.timers.at(state.tick.now_ms + RETRY_MS, partial(self._go_on, piece))
                return
            piece.next += 1
            piece.seen = max(piece.seen, piece.next)
        if piece.is_recorded:
            self._state.tick.batch.after_log.append(partial(self._recorded, piece))
        else:
            self._done(piece)

    def _recorded(self, piece: _Piece) -> None:
        """The log has the batch in which the last record of the piece was, or has refused it and has taken the next."""
        first, piece.back = piece.back, NOWHERE
        if first == NOWHERE:
            self._done(piece)
            return
        piece.next = next(i for i, (position, _) in enumerate(piece.found.records) if position >= first)
        self._go_on(piece)

    def _done(self, piece: _Piece) -> None:
        self.busy.discard(piece.slot)
        self._noted(piece.slot, piece.found.end, self._state.log_end)
        piece.then()

    def _take(self, piece: _Piece, position: int, frame: bytes) -> bool:
        """False when it is to be tried again later."""
        state, slot = self._state, piece.slot
        record = _own_record(state, frame, f"position {position} of slot {slot}")
        if record is None:
            return True
        if record.message.topic.startswith(QUEUE_PREFIX):
            return self._enqueue(piece, position, record)
        message, is_again = record.message, piece.next < piece.seen
        retain = message.retain and self._order.is_newer(message, slot)
        match = NO_MATCH
        if not message.is_expired(state.tick.now_ms):
            match = state.router.match(message.topic)
        elif retain:  # the one before it is over all the same
            message = replace(message, payload=b"", expires_ms=0, properties=None)
        if match.no_local:
            match = state.router.match_for(message.topic, message.publisher)
        if retain and not self._publishing.refusing.has_room(message):
            if position and not self._end_retained(piece, position, record):
                return False
            retain = False
        if not (retain or match.durable or match.applications or match.groups):
            if match.direct and not is_again:
                self.delivered += 1
                self._count(slot)
                self._publishing.deliver_now(Accepted(message, b"", match, None, 0))
            return True
        if message.retain and not retain:
            message = replace(message, retain=False)
        copied = Copied(position, _fields(record, slot, position), piece.take_back, is_again)
        refusal = self._publishing.accept_operators(message, copied, match)
        if refusal is HELD_UP:
            return False
        if refusal is None:
            self.copies += 1
            self._count(slot)
            piece.is_recorded = True
        else:
            self.refused += 1
        return True

    def _end_retained(self, piece: _Piece, position: int, record: LogRecord) -> bool:
        """There is no room for what the topic's newest message is now: the one before it is over, and stored is that
        nothing older comes back. This record says that what stands before `position` has been copied, and not the
        message itself, which a crash may keep from the log. False when it is to be tried again later."""
        end = replace(record.message, payload=b"", qos=0, expires_ms=0, properties=None)
        fields = _fields(record, piece.slot, position - 1)
        copied = Copied(position, fields, piece.take_back, piece.next < piece.seen)
        if self._publishing.accept_operators(end, copied, NO_MATCH) is HELD_UP:
            return False
        piece.is_recorded = True
        return True

    def _count(self, slot: int) -> None:
        self.taken[slot] = self.taken.get(slot, 0) + 1

    def _enqueue(self, piece: _Piece, position: int, record: LogRecord) -> bool:
        """Likewise, what is for a durable queue of this slot: a will, or a message of QoS 0. All others of queues are
        for those of the slot whose log it is."""
        state, message = self._state, record.message
        queues, name = state.queues, message.topic[len(QUEUE_PREFIX) :]
        if queues is None or not queues.is_enabled:
            state.counters.publishes_refused += state.share.owns_queue(name)
            return True
        target = queues.look_up(message.topic)
        if not isinstance(target, QueueTarget) or target.elsewhere or target.aim is not QueueAim.ENQUEUE:
            return True
        if message.is_expired(state.tick.now_ms):
            return True
        copied = Copied(position, _fields(record, piece.slot, position), piece.take_back)
        permissions = self._publishers.permissions(record)
        refusal = self._publishing.accept_operators(message, copied, permissions=permissions)
        if refusal is HELD_UP or refusal is REPEATS_UNSTORED:
            return False
        if refusal is None:
            self.copies += 1
            self._count(piece.slot)
            piece.is_recorded = True
        elif refusal.code >= FIRST_ERROR:  # nobody can be told
            state.counters.publishes_refused += 1
        return True


def _fields(record: LogRecord, slot: int, position: int) -> tuple[tuple[int, bytes], ...]:
    """Those of the copy."""
    carried = (field for field in record.unknown_fields if field[0] != FIELD_REPLAYED)
    return (*carried, slot_field(slot, position))


def _own_record(state: BrokerState, frame: bytes, where: str) -> LogRecord | None:
    """None for what is a copy itself, is for sessions of its own node alone, or cannot be read."""
    record = state.damaged.decode(frame, where)
    if record is None or is_addressed(record) or slot_in(record) is not None:
        return None
    message = _in_own_time(state, record.message)
    return record if message is record.message else replace(record, message=message)


def _in_own_time(state: BrokerState, message: Message) -> Message:
    """Its deadline by the clock of this broker: the times of two have only dates in common."""
    tick, properties = state.tick, message.properties
    interval_s = None if properties is None else properties.message_expiry_interval
    if interval_s is None or not message.accepted_ms or tick.offset_ms is None:
        return message
    return replace(message, expires_ms=tick.from_date(message.accepted_ms + interval_s * 1000))


def _held(state: BrokerState, slot: int, topic: str) -> tuple[int, int] | None:
    """The stamp of a retained message, or of what has deleted it."""
    row = state.retained.newest(topic)
    if row is None:
        return None
    try:
        record = decode_record(row.record)
    except RecordError:
        return None
    source = slot_in(record)
    return record.message.accepted_ms, slot if source is None else source[0]
