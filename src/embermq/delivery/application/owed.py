"""QoS 2 that a session has under way from shared logs without their lanes: the client had it when it came, or its
partition went to another member since. It is sent and timed like a lane of its own, its number is its packet id.
"""

from embermq.delivery.application.window import released_delivery
from embermq.formats.log_record import RecordError, decode_record
from embermq.model.session_writes import QueueState
from embermq.model.shared_logs import SharedMark
from embermq.sessions.session import Delivery

OWED_LOG = "owed"
"""The lane's name; no log is called so."""


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
