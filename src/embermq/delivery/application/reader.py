"""Reading the embedded application logs for the clients that are connected: entries are sent in offset order."""

from collections import deque
from collections.abc import Callable

from embermq.delivery.application.lane import LogLane
from embermq.delivery.application.parking import Parking
from embermq.delivery.application.readers import ApplicationDelivery
from embermq.delivery.application.window import (
    PackEntry,
    SlidingWindow,
    log_delivery,
    released_delivery,
    settled_delivery,
)
from embermq.delivery.sending import BULK_BYTES_MAX
from embermq.durability.bodies import Bodies
from embermq.model.message import Message
from embermq.model.session_writes import QueueState
from embermq.model.tick_writes import ApplicationMark
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.application_log import ApplicationEntry, ApplicationLog
from embermq.ports.errors import StoreError
from embermq.ports.message_log import MessageLog
from embermq.ports.parked_bodies import ParkedBodies
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState


class Reader(LogLane):
    """One connected APPLICATION session."""

    __slots__ = ("bodies",)

    def __init__(self, session: Session, bodies: Bodies, floor: int) -> None:
        super().__init__(session, floor)
        self.bodies = bodies


class ApplicationReaders(ApplicationDelivery):
    """Reads the logs of the pipeline's file and the bodies from the message log."""

    def __init__(
        self, log: ApplicationLog, messages: MessageLog, bodies: ParkedBodies, parking: Parking
    ) -> None:
        super().__init__()
        self._log = log
        self._messages = messages
        self._bodies_kept = bodies
        self._parking = parking
        self._readers: dict[Session, Reader] = {}
        self._window = SlidingWindow(self, self.pump, parking)
        self._partly_free: set[Session] = set()
        """With more in the log, and room in windows of which most is under way."""
        self._complete = 0
        self._state: BrokerState
        self._failing = ""

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def failing(self) -> str:
        return self._failing

    def attach(self, state: BrokerState) -> None:
        self._state = state
        self._window.attach(state)

    # What the window wants stored

    def sent(self, lane: LogLane, delivery: Delivery, entry: PackEntry) -> None:
        self.mark(lane.session, delivery, QueueState.SENT)

    def mark(self, session: Session, delivery: Delivery, state: int) -> None:
        mark = ApplicationMark(session.generation, delivery.offset, delivery.packet_id, state)
        self._state.tick.writes.application_marks.append(mark)

    def floor(self, lane: LogLane) -> None:
        session = lane.session
        self._state.tick.writes.application_floors[session.generation] = (session.client_id, lane.floor)

    # Reading

    def recall(self, session: Session, then: Callable[[], None]) -> None:
        then()  # the log is a part of the pipeline's file, and what it holds is read when it is sent

    def resume(self, session: Session) -> None:
        """When it cannot be read now, the client is sent away: to go on without it would break the order."""
        try:
            self._resume(session)
        except StoreError as error:
            self._failing = str(error)
            self._readers.pop(session, None)
            if session.link is not None:
                session.link.disconnect(ReasonCode.SERVER_BUSY)

    def _resume(self, session: Session) -> None:
        context = self._log.context(session.generation)
        floor = context.floor_offset if context else 0
        for writes in self._state.tick.unstored():  # while the store takes nothing it may stand behind
            floor = max(floor, writes.application_floors.get(session.generation, ("", 0))[1])
        damaged = self._state.damaged.note
        bodies = Bodies(self._messages, self._bodies_kept, session.generation, damaged)
        reader = Reader(session, bodies, floor)
        self._readers[session] = reader
        marks = [mark for mark in context.marks if mark.offset >= floor] if context else []
        if marks and not session.last_packet_id:
            session.last_packet_id = marks[-1].packet_id
        for mark in marks:
            reader.next_offset = mark.offset + 1
            delivery = self._from_mark(reader, mark)
            reader.pending.append(delivery)
            if not delivery.settled:
                session.resend = session.resend or deque()
                session.resend.append(delivery)
        if session.link is not None:
            self._window.begin(reader, session.link)

    def _from_mark(self, reader: Reader, mark: ApplicationMark) -> Delivery:
        found = reader.bodies.get(mark.offset) if mark.state != QueueState.DONE else None
        if found is None:
            if mark.state == QueueState.RELEASED:
                return released_delivery(mark.offset, mark.packet_id)
            self.lost += mark.state == QueueState.SENT
            return settled_delivery(mark.offset, mark.packet_id)
        entries = self._log.read(reader.session.generation, mark.offset, 1)
        message = found[0].message
        if entries and entries[0].offset == mark.offset:
            delivery = log_delivery(_pack_entry(entries[0], message), message, mark.packet_id)
        else:
            unstamped = PackEntry(mark.offset, message, message.qos, False, ())
            delivery = log_delivery(unstamped, message, mark.packet_id)
        delivery.released = mark.state == QueueState.RELEASED
        delivery.dup = True
        return delivery

    def suspend(self, session: Session) -> None:
        self._partly_free.discard(session)
        reader = self._readers.pop(session, None)
        if reader is not None:
            self._window.end(reader)

    def ended(self, session: Session) -> None:
        """The pipeline removes the log when its context is gone from the store."""
        self.suspend(session)
        self._parking.forget(session)

    def poll(self) -> None:
        """Look whether the pipeline has brought something new."""
        partly_free, self._partly_free = self._partly_free, set()
        for session in partly_free:
            self.pump(session)
        was_failing, self._failing = self._failing, ""
        try:
            complete = self._log.complete_offset()
        except StoreError as error:
            self._failing = str(error)
            return
        if complete != self._complete or was_failing:
            self._complete = complete
            for session in list(self._readers):
                self.pump(session)

    def pump(self, session: Session) -> None:
        reader = self._readers.get(session)
        link = session.link
        if reader is None or link is None:
            return
        room = self._window.room(reader, link)
        if not room or reader.next_offset >= self._complete:
            self._window.follow_idle(reader)
            return
        try:
            entries = self._log.read(session.generation, reader.next_offset, room)
            pack = self._bodies(reader, entries)
        except StoreError as error:
            self._failing = str(error)  # looked at again with the next poll
            return
        if not pack:
            reader.next_offset = max(reader.next_offset, self._complete)
            self._window.follow_idle(reader)
            return
        self._window.send_pack(reader, link, pack)

    def _bodies(self, reader: Reader, entries: list[ApplicationEntry]) -> list[PackEntry]:
        """As many of the entries as one tick may put on a link."""
        pack: list[PackEntry] = []
        size = 0
        for entry in entries:
            found = reader.bodies.get(entry.offset)
            pack.append(_pack_entry(entry, None if found is None else found[0].message))
            size += len(found[1]) if found is not None else 0
            if size >= BULK_BYTES_MAX:
                break
        self.lost += sum(entry.message is None for entry in pack)
        return pack

    def settled(self, session: Session, delivery: Delivery) -> None:
        reader = self._readers.get(session)
        if reader is not None:
            self._window.settle(reader, delivery)
            if session.has_room_again:
                self.pump(session)
            elif reader.next_offset < self._complete:
                self._partly_free.add(session)

    def released(self, session: Session, delivery: Delivery) -> None:
        self._window.released(session, delivery)


def _pack_entry(entry: ApplicationEntry, message: Message | None) -> PackEntry:
    return PackEntry(entry.offset, message, entry.qos, entry.retain_as_published, entry.identifiers)
