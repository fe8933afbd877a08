"""What the store holds of a session, as deliveries."""

from embermq.formats.damaged_records import DamagedRecords
from embermq.model.message import Message
from embermq.model.session_writes import QueueRow, QueueState
from embermq.sessions.session import Delivery, Session

_LOST = Message("", b"", 2, False, "", 4, 0)
"""Stands for a record that the store has let go of while its PUBREL was owed."""


def delivery_from(row: QueueRow, damaged: DamagedRecords) -> Delivery | None:
    """The delivery that a row stands for; one without its record is RELEASED. None for a damaged record."""
    message: Message = _LOST
    if row.record:
        record = damaged.decode(
            row.record, f"a stored message of the session {row.generation}, offset {row.offset}"
        )
        if record is None and row.state != QueueState.RELEASED:
            return None
        message = record.message if record is not None else _LOST
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


def keep_places(session: Session) -> None:
    """What is in flight and not written comes before the row that is about to be: it may have to be written later,
    and is resent in the order in which it was first sent [MQTT-4.6.0-1]."""
    unwritten: list[Delivery] = []
    for delivery in reversed(session.window.values()):
        if delivery.is_kept_elsewhere:
            continue
        if delivery.place:
            break
        if not delivery.seq:  # a row enters the window anew when it has been stored
            unwritten.append(delivery)
    for delivery in reversed(unwritten):
        delivery.place = session.next_place()
