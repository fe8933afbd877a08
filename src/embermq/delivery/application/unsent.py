"""Messages of QoS 2 whose partition went to another member when they were stored for this one, and not sent yet."""

from collections import deque
from collections.abc import Callable, Iterable

from embermq.delivery.sending import BULK_BYTES_MAX, put_on_link, send_pubrel, stored_frame
from embermq.sessions.link import Link
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState


class Unsent:
    """Of all connected sessions. They are in the session's window, and in store as its own. `dropped` is told of one
    that is larger than the client takes."""

    def __init__(self, dropped: Callable[[Session, Delivery], object]) -> None:
        self._dropped = dropped
        self._waiting: dict[Session, deque[Delivery]] = {}

    def keep(self, session: Session, deliveries: Iterable[Delivery]) -> None:
        """They are sent as soon as the socket takes them."""
        self._waiting.setdefault(session, deque()).extend(deliveries)

    def forget(self, session: Session) -> None:
        """The client is gone."""
        self._waiting.pop(session, None)

    def send(self, session: Session, state: BrokerState) -> bool:
        """Whether nothing waits any more."""
        if session not in self._waiting:
            return True
        link, waiting = session.link, self._waiting[session]
        while waiting and link is not None and _takes(link):
            self._put(session, link, waiting.popleft(), state)
        if waiting:
            return False
        del self._waiting[session]
        return True

    def _put(self, session: Session, link: Link, delivery: Delivery, state: BrokerState) -> None:
        if session.window.get(delivery.packet_id) is not delivery:
            return
        if delivery.released:
            send_pubrel(link, delivery)
            return
        frame = stored_frame(delivery, session, state.tick.now_ms)
        if put_on_link(link, delivery, frame, state.counters):
            link.bulk_bytes += len(frame[0]) + len(frame[1])
        else:
            del session.window[delivery.packet_id]
            delivery.settled = True
            self._dropped(session, delivery)


def _takes(link: Link) -> bool:
    return not link.closing and not link.paused and link.bulk_bytes < BULK_BYTES_MAX
