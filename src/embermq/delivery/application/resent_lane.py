"""QoS 2 that a session had under way from shared logs when its client came: resent without their lanes, which may be
another member's, and timed like a lane of its own."""

from __future__ import annotations

from collections.abc import Iterable

from embermq.delivery.application.lane import Lane
from embermq.delivery.application.window import released_delivery
from embermq.formats.log_record import RecordError, decode_record
from embermq.model.session_writes import QueueState
from embermq.model.shared_logs import SharedMark
from embermq.sessions.session import Delivery, Session

OWED_LOG = "owed"
"""The lane's name; no log is called so."""


class OwedLane(Lane):
    """Of one connection. A message's offset is its packet id: that is its own on all connections, and attempts are
    counted by it."""

    __slots__ = ("_owed",)

    def __init__(self, session: Session, owed: Iterable[Delivery]) -> None:
        super().__init__(session, 0, OWED_LOG)
        self._owed = sorted(owed, key=_packet_id)

    def under_way(self) -> Iterable[Delivery]:
        window = self.session.window
        return [one for one in self._unsettled() if window.get(one.packet_id) is one]

    def lowest(self) -> int:
        return min(map(_packet_id, self._unsettled()), default=2**62)

    def last(self) -> int:
        return max(map(_packet_id, self._unsettled()), default=-1)

    def _unsettled(self) -> list[Delivery]:
        return [one for one in self._owed if not one.settled]


def owed_delivery(mark: SharedMark) -> Delivery:
    """What is in store of a message under way, to be sent again."""
    if mark.state == QueueState.RELEASED:
        return released_delivery(mark.packet_id, mark.packet_id)
    try:
        message = decode_record(mark.record).message
    except RecordError:  # it cannot be sent again; a PUBREL brings it to its end
        return released_delivery(mark.packet_id, mark.packet_id)
    return Delivery(
        message,
        b"",
        mark.packet_id,
        2,
        mark.retain,
        mark.identifiers,
        0,
        mark.packet_id,
        application=True,
        dup=True,
    )


def _packet_id(delivery: Delivery) -> int:
    return delivery.packet_id
