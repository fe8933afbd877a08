"""What a consumer is sent: the publisher's message with what the broker says of it, as bytes on a link."""

from embermq.model.counters import Counters
from embermq.model.message import Message
from embermq.mqtt.wire.encoder import publish_frame
from embermq.mqtt.wire.properties import Properties, encode_message_properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.queues.names import QUEUE_PREFIX
from embermq.queues.publication import encode_stamps, without_reserved
from embermq.queues.queue import ConsumerDelivery as Owed
from embermq.sessions.forwarded_frames import PACKET_ID_BYTES, Frame, frame_bytes, interval_left_s
from embermq.sessions.link import LARGE_PACKET_BYTES, Link
from embermq.sessions.session import Delivery
from embermq.sessions.topic_aliases import aliased

_NONE = Properties()


def queue_frame(body: Message, delivery: Delivery, owed: Owed, link: Link, now_ms: int) -> Frame:
    """The parts of a PUBLISH. A dead letter, or a message that came back from there, has outlived its publisher's
    Message Expiry Interval or may yet: it goes without."""
    properties = b""
    if link.version == ProtocolVersion.V5:
        stamps = encode_stamps(owed.stamps)
        is_as_published = owed.stamps.dead_letter is None and body.expires_ms >= owed.expires_ms
        left_s = interval_left_s(body, now_ms) if is_as_published else None
        source, identifiers = body.properties, delivery.identifiers
        if source is None and not identifiers and left_s is None:
            properties = encode_message_properties(None, stamps)
        else:
            properties = _with_stamps(source or _NONE, identifiers, left_s, stamps)
    return publish_frame(
        QUEUE_PREFIX + owed.queue,
        body.payload,
        qos=delivery.qos,
        retain=False,
        version=link.version,
        properties=properties,
    )


def _with_stamps(
    source: Properties, identifiers: tuple[int, ...], left_s: int | None, stamps: bytes
) -> bytes:
    kept = Properties(
        payload_format_indicator=source.payload_format_indicator,
        message_expiry_interval=left_s,
        content_type=source.content_type,
        response_topic=source.response_topic,
        correlation_data=source.correlation_data,
        subscription_identifiers=identifiers,
        user_properties=without_reserved(source.user_properties),
    )
    return encode_message_properties(kept, stamps)


def put_on_link(link: Link, delivery: Delivery, topic: str, frame: Frame, counters: Counters) -> int:
    """Queue a PUBLISH, with the packet id of the delivery unless it is QoS 0. Returns its size; when that is more than
    the client takes [MQTT-3.1.2-24] nothing is queued."""
    if link.aliases_out is not None:
        frame = aliased(link, topic, frame)
    packet_id = delivery.packet_id.to_bytes(PACKET_ID_BYTES, "big") if delivery.qos else b""
    size = frame_bytes(frame) + len(packet_id)
    if size > link.packet_bytes_max:
        return size
    if size >= LARGE_PACKET_BYTES:
        link.has_large = True
    if not link.out:
        link.dirty.append(link)
    if packet_id:
        head, properties, payload = frame
        link.out += (head, packet_id, properties, payload)
    else:
        link.out += frame
        counters.messages_sent_qos_0 += 1
    counters.messages_sent += 1
    counters.payload_bytes_sent += len(delivery.message.payload)
    return size
