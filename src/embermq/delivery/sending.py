"""Putting deliveries on a link."""

from collections.abc import Callable

from embermq.model.counters import Counters
from embermq.model.durations import Durations
from embermq.model.message import Message
from embermq.mqtt.wire.encoder import pubrel, with_dup
from embermq.sessions.forwarded_frames import PACKET_ID_BYTES, Frame, message_frame
from embermq.sessions.link import LARGE_PACKET_BYTES, Link
from embermq.sessions.session import Delivery, Session
from embermq.sessions.tick import Tick
from embermq.sessions.topic_aliases import aliased

BULK_BYTES_MAX = 256 * 1024
"""Bytes of packets put on one link in one tick from what has gathered for it: a window may have room for far more."""

QUEUED_MESSAGES_MAX = 1_000
"""Messages that wait in memory for one client's window; their bytes are `mqtt.queued_bytes_max`."""


def put_on_link(link: Link, delivery: Delivery, frame: Frame, counters: Counters) -> bool:
    """Queue a PUBLISH; False when it is larger than the client takes [MQTT-3.1.2-24]."""
    if link.aliases_out is not None:
        frame = aliased(link, delivery.message.topic, frame)
    head, properties, payload = frame
    size = len(head) + PACKET_ID_BYTES + len(properties) + len(payload)
    if size > link.packet_bytes_max:
        counters.dropped_too_large += 1
        return False
    if size >= LARGE_PACKET_BYTES:
        link.has_large = True
    if not link.out:
        link.dirty.append(link)
    link.out += (head, delivery.packet_id.to_bytes(2, "big"), properties, payload)
    counters.messages_sent += 1
    counters.payload_bytes_sent += len(delivery.message.payload)
    return True


def note_delay(delays: Durations, link: Link, deliveries: list[Delivery], tick: Tick) -> None:
    """Count how old the first one is of those that go to a link now. What came before its client did has waited for
    that alone."""
    accepted_ms = deliveries[0].message.accepted_ms if deliveries else 0
    if accepted_ms and accepted_ms >= tick.to_date(link.opened_ms):
        delays.add(max(0, tick.date_ms - accepted_ms) / 1000)


def is_denied(session: Session, message: Message, counters: Counters) -> bool:
    """Whether the client may not have it any more: the rules have changed, or the client is another user."""
    permissions = session.permissions
    if permissions is None or permissions.may_receive(message.topic):
        return False
    counters.deliveries_denied += 1
    return True


def stored_frame(delivery: Delivery, session: Session, now_ms: int) -> Frame:
    """The frame of a delivery that was read from a store or waited."""
    link = session.link
    assert link is not None
    head, properties, payload = message_frame(
        delivery.message,
        qos=delivery.qos,
        retain=delivery.retain,
        version=link.version,
        identifiers=delivery.identifiers,
        now_ms=now_ms,
    )
    return with_dup(head) if delivery.dup else head, properties, payload


def send_pubrel(link: Link, delivery: Delivery) -> None:
    """Queue the PUBREL of a QoS 2 delivery."""
    link.send(pubrel(delivery.packet_id))


def send_pubrels(_session: Session, link: Link, deliveries: list[Delivery]) -> None:
    """The same of several that belong to the client's session."""
    for delivery in deliveries:
        send_pubrel(link, delivery)


def hand_over_unstored(session: Session, take: Callable[[Delivery], bool]) -> list[Delivery]:
    """Offer what came by shared subscriptions: QoS 1 in flight, what is to be sent when it is stored, and what
    waits for room; not what its group still has. Returns what was taken."""
    unsent = {id(delivery) for delivery in session.unsent or ()}
    taken = [
        delivery
        for delivery in session.window.values()
        if delivery.shared
        and not delivery.given
        and (delivery.qos == 1 or id(delivery) in unsent)
        and take(delivery)
    ]
    for delivery in taken:
        del session.window[delivery.packet_id]
    if session.waiting:
        offered = [delivery for delivery in session.waiting if delivery.shared and take(delivery)]
        for delivery in offered:
            session.waiting.remove(delivery)
            session.waiting_bytes -= delivery.waiting_bytes
        taken += offered
    for delivery in taken:
        delivery.settled = True
    return taken
