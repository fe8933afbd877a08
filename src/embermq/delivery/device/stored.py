"""What the store holds of a session, as deliveries; and how it is offered to others when the session has ended."""

from collections.abc import Callable
from functools import partial

from embermq.delivery.device.requests import PAGE_MESSAGES, Requests
from embermq.formats.damaged_records import DamagedRecords
from embermq.formats.log_record import RecordError, decode_record
from embermq.model.message import Message
from embermq.model.session_writes import QueueRow, QueueState, SessionWrites
from embermq.routing.router import Receiver
from embermq.sessions.session import Delivery, Session
from embermq.sessions.tick import Accepted

_LOST = Message("", b"", 2, False, "", 4, 0)
"""Stands for a record that the store has let go of while its PUBREL was owed."""


def delivery_from(row: QueueRow, damaged: DamagedRecords) -> Delivery | None:
    """The delivery that a row stands for; one without its record is RELEASED. None for a damaged record."""
    message: Message = _LOST
    if row.record:
        try:
            message = decode_record(row.record).message
        except RecordError as error:
            place = f"a stored message of the session {row.generation}, offset {row.offset}"
            damaged.refuse(row.record, place, error)
            if row.state != QueueState.RELEASED:
                return None
    return Delivery(
        message,
        row.record,
        row.offset,
        row.flags & 3,
        bool(row.flags & 4),
        row.identifiers,
        row.seq,
        row.packet_id,
        released=row.state == QueueState.RELEASED,
        shared=row.flags >> 3,
    )


def late_delivery(receiver: Receiver, accepted: Accepted, seq: int) -> Delivery:
    """A record that is read from the log, for a receiver; `seq` is its place, 0 behind all others."""
    message = accepted.message
    qos, retain = min(receiver.qos, message.qos), message.retain and receiver.retain_as_published
    delivery = Delivery(message, accepted.record, accepted.offset, qos, retain, receiver.identifiers, seq)
    delivery.shared = receiver.shared
    return delivery


class StoredOffers:
    """Offers what came by shared subscriptions and is stored, rows that the store has not been shown yet included.

    `unstored` is what ticks before it still want of the queue; `known` are places of rows that are in nobody's way: in
    flight, settled, or offered already.
    """

    def __init__(
        self,
        take: Callable[[Delivery], bool],
        then: Callable[[], None] | None,
        known: set[int],
        unstored: SessionWrites,
        damaged: DamagedRecords,
    ) -> None:
        self._damaged = damaged
        self._take = take
        self._is_asking = self._goes_on = False
        self._then = then
        self._known = known
        self._rows = unstored.queue_rows
        done = QueueState.DONE
        self._known.update(mark.seq for mark in unstored.queue_marks if mark.state == done)
        self._sent = {mark.seq for mark in unstored.queue_marks if mark.state != done}
        self._known.update(seq for _, seq in unstored.queue_dropped)

    def begin(self, requests: Requests, session: Session) -> None:
        """The session is not deleted before the end is reached (`SessionWrites.handing_on`)."""
        requests.in_flight(session.generation, self._offer)
        self._read(requests, session.generation, 0)

    def _read(self, requests: Requests, generation: int, after_seq: int) -> None:
        """Page by page; stores that answer at once are asked in a loop."""
        self._after_seq, self._goes_on = after_seq, True
        while self._goes_on:
            self._goes_on, self._is_asking = False, True
            then = partial(self._page, requests, generation)
            requests.page(generation, self._after_seq, PAGE_MESSAGES, then)
            self._is_asking = False

    def _page(self, requests: Requests, generation: int, rows: list[QueueRow]) -> None:
        self._offer(rows)
        if not rows:
            self._finish()
        elif self._is_asking:
            self._after_seq, self._goes_on = rows[-1].seq, True
        else:
            self._read(requests, generation, rows[-1].seq)

    def _offer(self, rows: list[QueueRow]) -> None:
        for row in rows:
            if row.seq in self._known or not row.record:
                continue
            self._known.add(row.seq)
            delivery = delivery_from(row, self._damaged)
            if delivery is None:
                continue
            was_sent = row.state != QueueState.QUEUED or row.seq in self._sent
            if delivery.shared and not (delivery.qos == 2 and was_sent):
                self._take(delivery)

    def _finish(self) -> None:
        self._offer(self._rows)
        if self._then is not None:
            self._then()
