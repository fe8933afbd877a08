"""The direct way: never waits for a store."""

from collections import deque
from collections.abc import Callable

from embermq.delivery.sending import (
    BULK_BYTES_MAX,
    QUEUED_MESSAGES_MAX,
    hand_over_unstored,
    is_denied,
    put_on_link,
    send_pubrel,
    stored_frame,
)
from embermq.model.message import Message, said_bytes
from embermq.routing.router import Receiver
from embermq.sessions.delivery_path import DeliveryPath
from embermq.sessions.forwarded_frames import Frame, accepted_frame, frame_bytes, message_frame
from embermq.sessions.link import LARGE_PACKET_BYTES, Link
from embermq.sessions.packet_ids import next_packet_id
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted
from embermq.sessions.topic_aliases import aliased


class DirectPath(DeliveryPath):
    """QoS 1 and 2 keep to the client's window; what does not fit waits in memory, up to a limit. QoS 0 is dropped
    while the client's socket takes nothing."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def may_return(self, session: Session) -> bool:
        return True

    def deliver(self, session: Session, receiver: Receiver, accepted: Accepted) -> None:
        link = session.link
        if link is None or link.closing:
            return
        message = accepted.message
        qos = min(message.qos, receiver.qos)
        retain = message.retain and receiver.retain_as_published
        if message.expires_ms and message.is_expired(self._state.tick.now_ms):
            return
        if qos == 0:
            frame = accepted_frame(accepted, 0, retain, link.version, receiver.identifiers)
            self._send_qos0(link, message, frame)
            return
        delivery = Delivery(message, b"", -1, qos, retain, receiver.identifiers)
        if receiver.shared:
            delivery.shared, delivery.offset = receiver.shared, accepted.offset
        if self._must_wait(session, link):
            # As `said_bytes`, without the call where there is nothing more to count.
            is_plain = message.properties is None
            size = len(message.topic) + len(message.payload) if is_plain else accepted.said_bytes()
            self._wait(session, delivery, size)
            return
        session.window[next_packet_id(session)] = delivery
        delivery.packet_id = session.last_packet_id
        frame = accepted_frame(accepted, qos, retain, link.version, receiver.identifiers)
        if not put_on_link(link, delivery, frame, self._state.counters):
            del session.window[delivery.packet_id]

    def deliver_retained(self, session: Session, receiver: Receiver, message: Message, record: bytes) -> None:
        link = session.link
        if link is None or link.closing:
            return
        qos = min(receiver.qos, message.qos)
        delivery = Delivery(message, b"", -1, qos, True, receiver.identifiers)
        if qos == 0:
            now_ms = self._state.tick.now_ms
            frame = message_frame(
                message,
                qos=0,
                retain=True,
                version=link.version,
                identifiers=receiver.identifiers,
                now_ms=now_ms,
            )
            self._send_qos0(link, message, frame)
        elif self._must_wait(session, link):
            self._wait(session, delivery, said_bytes(message))
        else:
            self._send(session, link, delivery)

    def _send_qos0(self, link: Link, message: Message, frame: Frame) -> None:
        counters = self._state.counters
        if link.paused:
            counters.dropped_slow += 1
            return
        if link.aliases_out is not None:
            frame = aliased(link, message.topic, frame)
        size = frame_bytes(frame)
        if size > link.packet_bytes_max:
            counters.dropped_too_large += 1
            return
        if size >= LARGE_PACKET_BYTES:
            link.has_large = True
        if not link.out:
            link.dirty.append(link)
        link.out += frame
        counters.messages_sent += 1
        counters.messages_sent_qos_0 += 1
        counters.payload_bytes_sent += len(message.payload)

    def _must_wait(self, session: Session, link: Link) -> bool:
        return bool(session.waiting) or link.paused or len(session.window) >= session.window_max

    def _wait(self, session: Session, delivery: Delivery, size: int) -> None:
        waiting = session.waiting
        if waiting is None:
            waiting = session.waiting = deque()
        waiting_bytes = session.waiting_bytes + size
        if len(waiting) >= QUEUED_MESSAGES_MAX or waiting_bytes > self._state.settings.queued_bytes_max:
            self._state.counters.dropped_slow += 1
            return
        delivery.waiting_bytes = size
        waiting.append(delivery)
        session.waiting_bytes = waiting_bytes

    def _send(self, session: Session, link: Link, delivery: Delivery) -> None:
        """Send what has waited."""
        delivery.packet_id = next_packet_id(session)
        frame = stored_frame(delivery, session, self._state.tick.now_ms)
        if put_on_link(link, delivery, frame, self._state.counters):
            session.window[delivery.packet_id] = delivery
            link.bulk_bytes += frame_bytes(frame)

    def _refill(self, session: Session) -> None:
        waiting, link = session.waiting, session.link
        if not waiting or link is None:
            return
        now_ms = self._state.tick.now_ms
        while waiting and not link.paused and not link.closing and len(session.window) < session.window_max:
            if link.bulk_bytes >= BULK_BYTES_MAX:
                return  # what is in flight now will be acknowledged
            delivery = waiting.popleft()
            session.waiting_bytes -= delivery.waiting_bytes
            if delivery.message.is_expired(now_ms):
                self._state.counters.dropped_expired += 1
                continue
            if session.permissions is not None and is_denied(session, delivery.message, self._state.counters):
                continue
            self._send(session, link, delivery)

    def settled(self, session: Session, delivery: Delivery) -> None:
        if session.waiting:
            self._refill(session)
        if self._state.groups.stalled:
            self._state.groups.has_room(session)

    def released(self, session: Session, delivery: Delivery) -> None:
        if session.link is not None:
            send_pubrel(session.link, delivery)

    def recall(self, session: Session, then: Callable[[list[Delivery]], None]) -> None:
        then([])

    def resume(self, session: Session, owed: list[Delivery]) -> None:
        """Nothing is owed: a session of this kind begins with its connection."""

    def hand_over(
        self,
        session: Session,
        take: Callable[[Delivery], bool],
        *,
        ended: bool,
        then: Callable[[], None] | None = None,
    ) -> None:
        hand_over_unstored(session, take)
        if then is not None:
            then()

    def write_down(self, session: Session) -> None:
        """Nothing of it outlives the connection."""

    def suspend(self, session: Session) -> None:
        session.window.clear()
        session.waiting = None
        session.waiting_bytes = 0

    def forget(self, session: Session) -> None:
        self.suspend(session)

    def writable(self, session: Session) -> None:
        self._refill(session)
        if self._state.groups.stalled:
            self._state.groups.has_room(session)
