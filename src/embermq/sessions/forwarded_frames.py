"""Encoding of forwarded messages, once for all receivers that get the same bytes."""

from embermq.model.message import Message
from embermq.mqtt.value import replace
from embermq.mqtt.wire.encoder import publish_frame
from embermq.mqtt.wire.properties import Properties, encode_message_properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.tick import Accepted

V5 = ProtocolVersion.V5
_NO_PROPERTIES = b"\x00"
PACKET_ID_BYTES = 2

Frame = tuple[bytes, bytes, bytes]
"""Bytes before the packet id, properties and payload behind it."""


def frame_bytes(frame: Frame) -> int:
    """The size of a packet without its packet id."""
    return len(frame[0]) + len(frame[1]) + len(frame[2])


def interval_left_s(message: Message, now_ms: int) -> int | None:
    """What is left of the expiry interval [MQTT-3.3.2-6]; None for a message that has none."""
    return max(0, -(-(message.expires_ms - now_ms) // 1000)) if message.expires_ms else None


def counted_anew(message: Message, now_ms: int) -> Message:
    """The message with what is left of its expiry interval, as if it had been accepted now."""
    properties = message.properties
    if not message.expires_ms or properties is None:
        return message
    left = replace(properties, message_expiry_interval=interval_left_s(message, now_ms))
    return replace(message, properties=left)


def forwarded_properties(message: Message, identifiers: tuple[int, ...], left_s: int | None) -> bytes:
    """The property block for an MQTT 5 receiver: the publisher's, with `left_s` for the expiry interval, and the
    receiver's subscription identifiers [MQTT-3.3.4-3]."""
    source = message.properties
    if source is None and not identifiers and left_s is None:
        return _NO_PROPERTIES
    if source is None:
        return encode_message_properties(
            Properties(subscription_identifiers=identifiers, message_expiry_interval=left_s)
        )
    return encode_message_properties(
        Properties(
            payload_format_indicator=source.payload_format_indicator,
            message_expiry_interval=left_s,
            content_type=source.content_type,
            response_topic=source.response_topic,
            correlation_data=source.correlation_data,
            subscription_identifiers=identifiers,
            user_properties=source.user_properties,
        )
    )


def message_frame(
    message: Message,
    *,
    qos: int,
    retain: bool,
    version: ProtocolVersion,
    identifiers: tuple[int, ...],
    now_ms: int,
) -> Frame:
    """The parts of a PUBLISH for one kind of receiver."""
    properties = b""
    if version == ProtocolVersion.V5:
        properties = forwarded_properties(message, identifiers, interval_left_s(message, now_ms))
    return publish_frame(
        message.topic, message.payload, qos=qos, retain=retain, version=version, properties=properties
    )


def accepted_frame(
    accepted: Accepted, qos: int, retain: bool, version: ProtocolVersion, identifiers: tuple[int, ...]
) -> Frame:
    """The same, remembered on the accepted message: receivers of a fan-out mostly agree."""
    is_v5 = version == V5
    key = (is_v5, qos, retain, identifiers)
    if accepted.frame_key == key:
        return accepted.frame
    message = accepted.message
    properties = b""
    source = message.properties
    if is_v5 and (source is not None or identifiers):
        left_s = source.message_expiry_interval if source is not None and message.expires_ms else None
        properties = forwarded_properties(message, identifiers, left_s)
    frame = publish_frame(
        message.topic, message.payload, qos=qos, retain=retain, version=version, properties=properties
    )
    accepted.frame_key = key
    accepted.frame = frame
    return frame
