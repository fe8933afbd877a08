"""What memory has of a session's device queue, as rows: for a store that has lost what it had."""

from __future__ import annotations

from embermq.model.session_writes import QueueMark, QueueRow, QueueState, SessionWrites
from embermq.sessions.session import Delivery, Session


def stored_in_memory(session: Session) -> list[Delivery] | None:
    """Its rows that are in flight, in their order. None when more was stored than these: it is lost."""
    in_flight = [*session.window.values(), *(session.resend or ())]
    stored = [one for one in in_flight if one.seq > 0 and not one.application]
    return stored if len(stored) == session.queued else None


def store_anew(session: Session, stored: list[Delivery], expires_ms: int, writes: SessionWrites) -> None:
    """`expires_ms` is when what has no deadline of its own ceases to be kept."""
    for delivery in stored:
        deadline_ms = delivery.message.expires_ms
        writes.queue_rows.append(
            QueueRow(
                session.generation,
                delivery.seq,
                delivery.offset,
                delivery.packet_id,
                QueueState.SENT,
                delivery.qos | delivery.retain << 2 | delivery.shared << 3,
                min(expires_ms, deadline_ms) if deadline_ms else expires_ms,
                delivery.identifiers,
                delivery.record,
            )
        )
        if delivery.released:
            writes.queue_marks.append(
                QueueMark(
                    session.generation, delivery.seq, delivery.offset, QueueState.RELEASED, delivery.packet_id
                )
            )
