"""What a consumer is sent: the publisher's message with what the broker says of it, as bytes on a link."""

from embermq.model.counters import Counters
from embermq.model.message import Message
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.queues.names import QUEUE_PREFIX
from embermq.queues.publication import delivered_properties
from embermq.queues.queue import ConsumerDelivery as Owed
from embermq.sessions.forwarded_frames import PACKET_ID_BYTES, message_frame
from embermq.sessions.link import Link
from embermq.sessions.session import Delivery
from embermq.sessions.topic_aliases import aliased

_NONE = Properties()


def queue_message(body: Message, owed: Owed, version: int) -> Message:
    """The message of one delivery. A dead letter, or a message that came back from there, has outlived its
    publisher's Message Expiry Interval or may yet: it goes without."""
    topic = QUEUE_PREFIX + owed.queue
    is_as_published = owed.stamps.dead_letter is None and body.expires_ms >= owed.expires_ms
    expires_ms = body.expires_ms if is_as_published else 0
    properties = None
    if version == ProtocolVersion.V5:
        source = body.properties or _NONE
        properties = Properties(
            payload_format_indicator=source.payload_format_indicator,
            content_type=source.content_type,
            response_topic=source.response_topic,
            correlation_data=source.correlation_data,
            user_properties=delivered_properties(source.user_properties, owed.stamps),
        )
    return Message(
        topic,
        body.payload,
        body.qos,
        False,
        body.publisher,
        body.version,
        body.accepted_ms,
        expires_ms,
        properties,
    )


def put_on_link(link: Link, delivery: Delivery, now_ms: int, counters: Counters) -> int:
    """Queue a PUBLISH, with the packet id of the delivery unless it is QoS 0. Returns its size; when that is more than
    the client takes [MQTT-3.1.2-24] nothing is queued."""
    message = delivery.message
    frame = message_frame(
        message,
        qos=delivery.qos,
        retain=False,
        version=link.version,
        identifiers=delivery.identifiers,
        now_ms=now_ms,
    )
    head, tail = frame if link.aliases_out is None else aliased(link, message.topic, frame)
    packet_id = delivery.packet_id.to_bytes(PACKET_ID_BYTES, "big") if delivery.qos else b""
    size = len(head) + len(packet_id) + len(tail)
    if size > link.packet_bytes_max:
        return size
    if not link.out:
        link.dirty.append(link)
    if packet_id:
        link.out += (head, packet_id, tail)
    else:
        link.out += (head, tail)
        counters.messages_sent_qos_0 += 1
    counters.messages_sent += 1
    counters.payload_bytes_sent += len(message.payload)
    return size
