"""Places of deliveries in the order in which they are first sent."""

from embermq.sessions.session import Delivery, Session


def keep_places(session: Session) -> None:
    """What is in flight and not written comes before the row that is about to be: it may have to be written later,
    and is resent in the order in which it was first sent [MQTT-4.6.0-1]."""
    if not session.has_unplaced:
        return
    session.has_unplaced = False
    unwritten: list[Delivery] = []
    for delivery in reversed(session.window.values()):
        if delivery.place:
            break
        if not (
            delivery.seq or delivery.application or delivery.from_queue
        ):  # a row enters the window anew when it has been stored
            unwritten.append(delivery)
    for delivery in reversed(unwritten):
        delivery.place = session.next_place()
