"""Packet ids of what a session is sent: allocation, and those whose answer is still outstanding [MQTT 5.0, 2.2.1]."""

from embermq.sessions.session import PACKET_IDS, Delivery, Session


def next_packet_id(session: Session) -> int:
    """An id in 1..65535 that is not in flight [MQTT-2.2.1-3]. The window is never full when this is called."""
    window = session.window
    packet_id = session.last_packet_id
    while True:
        packet_id = packet_id + 1 if packet_id < PACKET_IDS else 1
        if packet_id not in window and (session.reserved is None or packet_id not in session.reserved):
            session.last_packet_id = packet_id
            return packet_id


def reserve_packet_id(session: Session, delivery: Delivery) -> None:
    """Give its packet id to nothing else. It leaves the window, which gets no larger than there are other ids."""
    session.window.pop(delivery.packet_id, None)
    if session.reserved is None:
        session.reserved = {}
    session.reserved[delivery.packet_id] = delivery
    session.window_max = min(session.window_max, PACKET_IDS - len(session.reserved))


def answered_late(session: Session, packet_id: int) -> Delivery | None:
    """The client speaks of a reserved packet id after all: its delivery is in the window again."""
    delivery = session.reserved.pop(packet_id, None) if session.reserved else None
    if delivery is not None:
        session.window[packet_id] = delivery
    return delivery


def take_packet_id(session: Session, wanted: int) -> int:
    """The id that the store gave a row, if it gave one and that is free; else a free one."""
    if wanted and wanted not in session.window:
        session.last_packet_id = wanted
        return wanted
    return next_packet_id(session)
