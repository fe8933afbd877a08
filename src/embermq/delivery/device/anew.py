"""What memory has of a session's device queue, as rows: for a store that has lost what it had."""

from __future__ import annotations

from collections.abc import Mapping

from embermq.model.session_writes import QueueMark, QueueRow, QueueState, SessionWrites
from embermq.sessions.session import Delivery, Session

Rows = Mapping[int, QueueRow]
"""By place."""


def in_flight(session: Session) -> dict[int, Delivery]:
    """What it has stored and is in flight, by place."""
    found = [*session.window.values(), *(session.resend or ())]
    return {one.seq: one for one in found if one.seq > 0 and not one.application}


def is_whole(session: Session, known: Rows, refused: Rows) -> bool:
    """Whether all that it has stored is in flight, or among rows that are known otherwise."""
    return len(in_flight(session).keys() | known.keys() | refused.keys()) >= session.queued


def store_anew(session: Session, known: Rows, refused: Rows, expires_ms: int, writes: SessionWrites) -> None:
    """`known` rows stand in `writes` already, `refused` ones are put once more. `expires_ms` is when what has no
    deadline of its own ceases to be kept."""
    deliveries = in_flight(session)
    writes.queue_rows[:0] = [
        row for seq, row in refused.items() if seq not in deliveries and seq not in known
    ]
    for seq, delivery in deliveries.items():
        if seq in known:
            continue
        deadline_ms = delivery.message.expires_ms
        writes.queue_rows.append(
            QueueRow(
                session.generation,
                seq,
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
            at = (session.generation, seq, delivery.offset)
            writes.queue_marks.append(QueueMark(*at, QueueState.RELEASED, delivery.packet_id))
