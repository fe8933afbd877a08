"""The window of a session, for every way by which messages reach it: which packet ids are free, which are in flight,
and which were given up and may still be answered [MQTT 5.0, 2.2.1].

What was given up on a connection of MQTT 5 stays in the window, since the client counts it against its Receive Maximum
[MQTT-3.3.4-9]; with MQTT 3 it leaves the window, and its packet id is reserved.
"""

from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.session import PACKET_IDS, Delivery, Session


def next_packet_id(session: Session) -> int:
    """An id in 1..65535 that is not in flight [MQTT-2.2.1-3]. The window is never full when this is called."""
    window = session.window
    packet_id = session.last_packet_id
    step, rest = session.id_step, session.id_rest
    if step > 1:
        packet_id -= (packet_id - rest) % step
    while True:
        packet_id += step
        if packet_id > PACKET_IDS:
            packet_id = rest or step
        if packet_id not in window and (session.reserved is None or packet_id not in session.reserved):
            session.last_packet_id = packet_id
            return packet_id


def later_id(one: int, other: int) -> int:
    """Which of two was given later, while fewer than half of all ids lie between them; 0 stands for none."""
    if not (one and other):
        return one or other
    return other if (other - one) % PACKET_IDS < PACKET_IDS // 2 else one


def reserve_packet_id(session: Session, delivery: Delivery) -> None:
    """Give its packet id to nothing else. It leaves the window, which gets no larger than there are other ids."""
    session.window.pop(delivery.packet_id, None)
    if session.reserved is None:
        session.reserved = {}
    session.reserved[delivery.packet_id] = delivery
    left = PACKET_IDS // session.id_step - len(session.reserved)
    session.client_window_max = min(session.client_window_max, left)
    session.window_max = min(session.window_max, left)


def answered_late(session: Session, packet_id: int) -> Delivery | None:
    """The client speaks of a reserved packet id after all: its delivery is in the window again."""
    delivery = session.reserved.pop(packet_id, None) if session.reserved else None
    if delivery is not None:
        session.window[packet_id] = delivery
        session.has_unplaced = True
    return delivery


def take_packet_id(session: Session, wanted: int) -> int:
    """The id that the store gave a row, if it gave one and that is free; else a free one."""
    if wanted and wanted not in session.window and wanted % session.id_step == session.id_rest:
        session.last_packet_id = wanted
        return wanted
    return next_packet_id(session)


def give_up(session: Session, delivery: Delivery) -> None:
    """Go on without an answer; no other message gets its packet id while the connection lasts."""
    delivery.settled = True
    link = session.link
    if link is None:
        return
    if link.version is ProtocolVersion.V5:
        session.given_up = session.given_up or set()
        session.given_up.add(delivery.packet_id)
    else:
        reserve_packet_id(session, delivery)


def answered(session: Session, delivery: Delivery) -> None:
    """What may have been given up is answered after all."""
    if session.given_up:
        session.given_up.discard(delivery.packet_id)


def is_given_up(session: Session) -> bool:
    """Whether everything that the client may have unacknowledged was given up: it can be sent nothing more."""
    return session.given_up is not None and len(session.given_up) >= session.client_window_max


def forget_given_up(session: Session) -> None:
    """A connection begins or ends; what has to keep its packet id is reserved again."""
    session.given_up = session.reserved = None
