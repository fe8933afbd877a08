"""Reading application logs for the clients that are connected.

Entries are sent in offset order. Before a PUBLISH is sent, its offset and packet id are in store, so that after a
crash the same ids are resent with DUP. The floor, below which everything is settled, is the contiguous acknowledged
prefix; what was settled above it is remembered one by one and never sent again.
"""

from collections import deque
from functools import partial

from embermq.broker.link import Link
from embermq.broker.session import Delivery, Session
from embermq.broker.state import BrokerState
from embermq.delivery.application.bodies import Bodies
from embermq.delivery.application.settings import ApplicationSettings
from embermq.delivery.sending import BULK_BYTES_MAX, is_denied, put_on_link, send_pubrel, stored_frame
from embermq.model.log_record import LogRecord
from embermq.model.message import Message
from embermq.model.session_writes import QueueState
from embermq.model.tick_writes import ApplicationMark
from embermq.ports.application_log import ApplicationEntry, ApplicationLog
from embermq.ports.errors import StoreError
from embermq.ports.message_log import MessageLog
from embermq.ports.parked_bodies import ParkedBodies
from embermq.protocol.reason_codes import ReasonCode

_NOTHING = Message("", b"", 0, False, "", 4, 0)
"""Stands for a record that is not needed any more."""

_Found = tuple[ApplicationEntry, tuple[LogRecord, bytes] | None]

IDLE_FLOOR_MS = 1_000
"""How often the floor of a client that has nothing to do follows the log."""


class Reader:
    """One connected APPLICATION session."""

    __slots__ = ("bodies", "floor", "floor_written_ms", "next_offset", "pending", "sending", "session")

    def __init__(self, session: Session, bodies: Bodies, floor: int) -> None:
        self.session = session
        self.bodies = bodies
        self.floor = floor
        self.next_offset = floor
        self.pending: deque[Delivery] = deque()
        """Sent or skipped entries at and above the floor, in offset order."""
        self.sending = False
        self.floor_written_ms = 0


class ApplicationReaders:
    """All readers of this broker."""

    def __init__(
        self, log: ApplicationLog, messages: MessageLog, parked: ParkedBodies, settings: ApplicationSettings
    ) -> None:
        self._log = log
        self._messages = messages
        self._parked = parked
        self._settings = settings
        self._readers: dict[Session, Reader] = {}
        self._complete = 0
        self._state: BrokerState
        self.lost = 0
        """Entries whose record the log no longer had."""
        self.failing = ""
        """Why application logs cannot be read now; "" when they can."""

    def __len__(self) -> int:
        return len(self._readers)

    def attach(self, state: BrokerState) -> None:
        """Complete the circle, as for the paths."""
        self._state = state

    def resume(self, session: Session) -> None:
        """The client is connected: what it has not acknowledged is to be resent, then comes what follows.

        When that cannot be read now, the client is sent away: to go on without it would break the order.
        """
        try:
            self._resume(session)
        except StoreError as error:
            self.failing = str(error)
            self._readers.pop(session, None)
            if session.link is not None:
                session.link.disconnect(ReasonCode.SERVER_BUSY)

    def _resume(self, session: Session) -> None:
        context = self._log.context(session.generation)
        reader = Reader(
            session,
            Bodies(self._messages, self._parked, session.generation),
            context.floor_offset if context else 0,
        )
        self._readers[session] = reader
        marks = context.marks if context else ()
        if marks and not session.last_packet_id:
            session.last_packet_id = marks[-1].packet_id
        for mark in marks:
            reader.next_offset = mark.offset + 1
            delivery = self._from_mark(reader, mark)
            reader.pending.append(delivery)
            if not delivery.settled:
                session.resend = session.resend or deque()
                session.resend.append(delivery)

    def _from_mark(self, reader: Reader, mark: ApplicationMark) -> Delivery:
        found = reader.bodies.get(mark.offset) if mark.state != QueueState.DONE else None
        if found is None:
            if mark.state == QueueState.SENT:
                self.lost += 1
            settled = mark.state != QueueState.RELEASED
            return _delivery(
                None,
                mark.offset,
                2,
                False,
                (),
                packet_id=mark.packet_id,
                settled=settled,
                released=not settled,
            )
        entries = self._log.read(reader.session.generation, mark.offset, 1)
        entry = entries[0] if entries and entries[0].offset == mark.offset else None
        record = found[0]
        qos = min(record.message.qos, entry.qos) if entry else record.message.qos
        retain = record.message.retain and entry is not None and entry.retain_as_published
        delivery = _delivery(
            record, mark.offset, qos, retain, entry.identifiers if entry else (), packet_id=mark.packet_id
        )
        delivery.released = mark.state == QueueState.RELEASED
        delivery.dup = True
        return delivery

    def suspend(self, session: Session) -> None:
        """The client is gone: its state is in store already."""
        self._readers.pop(session, None)

    def poll(self) -> None:
        """Look whether the pipeline has brought something new."""
        was_failing, self.failing = self.failing, ""
        try:
            complete = self._log.complete_offset()
        except StoreError as error:
            self.failing = str(error)
            return
        if complete != self._complete or was_failing:
            self._complete = complete
            for session in list(self._readers):
                self.pump(session)

    def pump(self, session: Session) -> None:
        """Send the next pack if there is room for it."""
        reader = self._readers.get(session)
        link = session.link
        if reader is None or link is None or link.closing or link.paused or reader.sending or session.resend:
            return
        room = min(session.window_max - len(session.window), self._settings.max_poll_records)
        if room <= 0 or reader.next_offset >= self._complete:
            self._follow_idle(reader)
            return
        try:
            entries = self._log.read(session.generation, reader.next_offset, room)
            pack = self._bodies(reader, entries)
        except StoreError as error:
            self.failing = str(error)  # looked at again with the next poll
            return
        if not pack:
            reader.next_offset = max(reader.next_offset, self._complete)
            self._follow_idle(reader)
            return
        self._send_pack(reader, link, pack)

    def _bodies(self, reader: Reader, entries: list[ApplicationEntry]) -> list[_Found]:
        """As many of the entries as one tick may put on a link."""
        pack: list[_Found] = []
        size = 0
        for entry in entries:
            found = reader.bodies.get(entry.offset)
            pack.append((entry, found))
            size += len(found[1]) if found is not None else 0
            if size >= BULK_BYTES_MAX:
                break
        return pack

    def _send_pack(self, reader: Reader, link: Link, found_entries: list[_Found]) -> None:
        session = reader.session
        now_ms = self._state.tick.now_ms
        marks = self._state.tick.writes.application_marks
        pack: list[Delivery] = []
        for entry, found in found_entries:
            reader.next_offset = entry.offset + 1
            if found is None or self._is_withheld(session, found[0].message, now_ms):
                self.lost += found is None
                reader.pending.append(_delivery(None, entry.offset, 0, False, (), settled=True))
                continue
            record = found[0]
            message = record.message
            qos = min(message.qos, entry.qos)
            retain = message.retain and entry.retain_as_published
            delivery = _delivery(
                record, entry.offset, qos, retain, entry.identifiers, packet_id=session.next_packet_id()
            )
            session.window[delivery.packet_id] = delivery
            reader.pending.append(delivery)
            marks.append(
                ApplicationMark(session.generation, entry.offset, delivery.packet_id, QueueState.SENT)
            )
            pack.append(delivery)
        self._advance_floor(reader)
        reader.sending = True
        self._state.tick.batch.after_log.append(partial(self._send, reader, link, pack))

    def _is_withheld(self, session: Session, message: Message, now_ms: int) -> bool:
        """Whether nobody wants it any more, or the client may not have it any more."""
        counters = self._state.counters
        if message.is_expired(now_ms):
            counters.dropped_expired += 1
            return True
        return session.permissions is not None and is_denied(session, message, counters)

    def _send(self, reader: Reader, link: Link, pack: list[Delivery]) -> None:
        """The packet ids are durable."""
        if reader.session.link is not link or link.closing:
            return
        reader.sending = False
        now_ms = self._state.tick.now_ms
        for delivery in pack:
            self._put(reader, link, delivery, now_ms)
        self.pump(reader.session)

    def _put(self, reader: Reader, link: Link, delivery: Delivery, now_ms: int) -> None:
        frame = stored_frame(delivery, reader.session, now_ms)
        if put_on_link(link, delivery, frame, self._state.counters):
            link.bulk_bytes += len(delivery.message.payload)
        else:
            del reader.session.window[delivery.packet_id]
            delivery.settled = True
            self._settle(reader, delivery)

    def settled(self, session: Session, delivery: Delivery) -> None:
        """PUBACK or PUBCOMP came."""
        reader = self._readers.get(session)
        if reader is not None:
            self._settle(reader, delivery)
            if 2 * len(session.window) <= session.window_max:
                self.pump(session)

    def _settle(self, reader: Reader, delivery: Delivery) -> None:
        if reader.pending and reader.pending[0] is delivery:
            self._advance_floor(reader)
            return
        mark = ApplicationMark(
            reader.session.generation, delivery.offset, delivery.packet_id, QueueState.DONE
        )
        self._state.tick.writes.application_marks.append(mark)

    def _advance_floor(self, reader: Reader) -> None:
        pending = reader.pending
        floor = reader.floor
        while pending and pending[0].settled:
            floor = pending.popleft().offset + 1
        if floor != reader.floor:
            reader.floor = floor
            reader.floor_written_ms = self._state.tick.now_ms
            self._state.tick.writes.application_floors[reader.session.generation] = (
                reader.session.client_id,
                floor,
            )

    def _follow_idle(self, reader: Reader) -> None:
        """Nothing is pending: what the log holds below the read position is not for this client."""
        now_ms = self._state.tick.now_ms
        if (
            reader.pending
            or reader.next_offset <= reader.floor
            or now_ms - reader.floor_written_ms < IDLE_FLOOR_MS
        ):
            return
        reader.floor = reader.next_offset
        reader.floor_written_ms = now_ms
        session = reader.session
        self._state.tick.writes.application_floors[session.generation] = (session.client_id, reader.floor)

    def released(self, session: Session, delivery: Delivery) -> None:
        """PUBREC came; PUBREL leaves at once when that is durable, not with the next pack."""
        mark = ApplicationMark(session.generation, delivery.offset, delivery.packet_id, QueueState.RELEASED)
        self._state.tick.writes.application_marks.append(mark)
        if session.link is not None:
            release = partial(self._release, session, session.link, delivery)
            self._state.tick.batch.after_log.append(release)

    def _release(self, session: Session, link: Link, delivery: Delivery) -> None:
        if session.link is link:
            send_pubrel(link, delivery)


def _delivery(
    record: LogRecord | None,
    offset: int,
    qos: int,
    retain: bool,
    identifiers: tuple[int, ...],
    *,
    packet_id: int = 0,
    settled: bool = False,
    released: bool = False,
) -> Delivery:
    message = record.message if record is not None else _NOTHING
    return Delivery(
        message, b"", offset, qos, retain, identifiers, 0, packet_id, True, released=released, settled=settled
    )
