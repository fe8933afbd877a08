"""From packets to bytes.

`encode` writes every packet of every version and checks what it is given. The helpers below it are for the
hot path: they trust that a topic and a packet id came out of the decoder or the session and check only
lengths.

MQTT 3.x has no properties and few reason codes: they are left out there, a CONNACK code is translated, and a
failure in SUBACK becomes 0x80. AUTH cannot be said in 3.x at all.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final, assert_never

from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import SHARE_PREFIX, validate_filter, validate_topic
from embermq.mqtt.wire.data_types import (
    VARINT_MAX,
    encode_binary,
    encode_integer,
    encode_text,
    encode_varint,
    read_varint,
)
from embermq.mqtt.wire.errors import EncodeError
from embermq.mqtt.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from embermq.mqtt.wire.properties import Properties, PropertyPlace, encode_properties
from embermq.mqtt.wire.reason_codes import (
    CONNACK_CODES,
    ConnectReturnCode,
    ReasonCode,
    to_connect_return_code,
)
from embermq.mqtt.wire.version import ProtocolVersion

V5: Final = ProtocolVersion.V5

CONNACKS_REMEMBERED: Final = 256
_TOPIC_BYTES_MAX: Final = 65_535
_short_head = Struct(">BBH").pack
_medium_head = Struct(">BBBH").pack


def publish_frame(
    topic: str, payload: bytes, *, qos: int, retain: bool, version: ProtocolVersion, properties: bytes
) -> tuple[bytes, bytes, bytes]:
    """A PUBLISH in three parts (head, properties, payload), to be shared by many receivers; the payload is not copied.

    The wire bytes are ``head + packet_id.to_bytes(2, "big") + properties + payload`` for QoS 1 and 2, the same without
    the packet id for QoS 0. ``properties`` is the block of `encode_properties` for 5.0 (``b""`` stands for the empty
    one) and unused in 3.x. Raises `EncodeError` when the topic or the packet is too long for the wire.
    """
    raw = topic.encode()
    size = len(raw)
    if version != 5:
        properties = b""
    elif not properties:
        properties = b"\x00"
    length = size + len(properties) + len(payload) + (4 if qos else 2)
    if size > _TOPIC_BYTES_MAX:
        raise EncodeError(f"topic of {size} bytes, the limit is {_TOPIC_BYTES_MAX}")
    first = 0x30 | qos << 1 | retain
    if length < 128:
        return _short_head(first, length, size) + raw, properties, payload
    if length < 16_384:
        return _medium_head(first, length & 0x7F | 0x80, length >> 7, size) + raw, properties, payload
    return bytes((first,)) + encode_varint(length) + size.to_bytes(2, "big") + raw, properties, payload


def with_dup(head: bytes) -> bytes:
    """The head of a PUBLISH of QoS 1 or 2 with the DUP flag set [MQTT-3.3.1-1]."""
    return bytes((head[0] | 0x08,)) + head[1:]


def with_topic_alias(
    frame: tuple[bytes, bytes, bytes], alias: int, *, keep_topic: bool
) -> tuple[bytes, bytes, bytes]:
    """A 5.0 PUBLISH, in the parts of `publish_frame`, with a topic alias beside its topic or in its place."""
    head, properties, payload = frame
    at = 1
    while head[at] > 127:
        at += 1
    topic = head[at + 1 :] if keep_topic else b"\x00\x00"
    size, begin = read_varint(properties, 0)
    properties = encode_varint(size + 3) + b"\x23" + alias.to_bytes(2, "big") + properties[begin:]
    length = len(topic) + len(properties) + len(payload) + (2 if head[0] & 6 else 0)
    return head[:1] + encode_varint(length) + topic, properties, payload


def puback(packet_id: int) -> bytes:
    """PUBACK with success, the same four bytes in every version."""
    return _short_head(0x40, 2, packet_id)


def pubrec(packet_id: int) -> bytes:
    """PUBREC with success."""
    return _short_head(0x50, 2, packet_id)


def pubrel(packet_id: int) -> bytes:
    """PUBREL with success."""
    return _short_head(0x62, 2, packet_id)


def pubcomp(packet_id: int) -> bytes:
    """PUBCOMP with success."""
    return _short_head(0x70, 2, packet_id)


def encode(packet: Packet, version: ProtocolVersion) -> bytes:
    """The wire bytes of any packet. Raises `EncodeError` for what that version cannot say or forbids."""
    match packet:
        case Publish():
            return _encode_publish(packet, version)
        case Puback():
            return _encode_acknowledgement(0x40, packet, PropertyPlace.PUBACK, version)
        case Pubrec():
            return _encode_acknowledgement(0x50, packet, PropertyPlace.PUBREC, version)
        case Pubrel():
            return _encode_acknowledgement(0x62, packet, PropertyPlace.PUBREL, version)
        case Pubcomp():
            return _encode_acknowledgement(0x70, packet, PropertyPlace.PUBCOMP, version)
        case Subscribe():
            return _framed(0x82, _subscribe_body(packet, version))
        case Suback():
            return _framed(0x90, _suback_body(packet, version))
        case Unsubscribe():
            return _framed(0xA2, _unsubscribe_body(packet, version))
        case Unsuback():
            return _framed(0xB0, _unsuback_body(packet, version))
        case Pingreq():
            return b"\xc0\x00"
        case Pingresp():
            return b"\xd0\x00"
        case Connect():
            return _framed(0x10, _connect_body(packet, version))
        case Connack():
            return _framed(0x20, _connack_body(packet, version))
        case Disconnect():
            return _encode_reason(0xE0, packet, PropertyPlace.DISCONNECT, version)
        case Auth():
            if version != V5:
                raise EncodeError(f"AUTH does not exist in {version!r}")
            return _encode_reason(0xF0, packet, PropertyPlace.AUTH, version)
        case _:
            assert_never(packet)


def _framed(first: int, body: bytes) -> bytes:
    if len(body) > VARINT_MAX:
        raise EncodeError(f"packet with a body of {len(body)} bytes, the limit is {VARINT_MAX}")
    return bytes((first,)) + encode_varint(len(body)) + body


def _packet_id(packet_id: int) -> bytes:
    if not 1 <= packet_id <= 65_535:
        raise EncodeError(f"packet identifier {packet_id} is not within 1..65535")
    return packet_id.to_bytes(2, "big")


def _topic(topic: str) -> bytes:
    try:
        validate_topic(topic)
    except TopicError as error:
        raise EncodeError(str(error)) from None
    return encode_text(topic)


def _filter(topic_filter: str) -> bytes:
    try:
        validate_filter(topic_filter)
    except TopicError as error:
        raise EncodeError(str(error)) from None
    return encode_text(topic_filter)


def _qos(qos: int) -> int:
    if not 0 <= qos <= 2:
        raise EncodeError(f"QoS {qos} is not within 0..2")
    return qos


def _encode_publish(packet: Publish, version: ProtocolVersion) -> bytes:
    qos = _qos(packet.qos)
    if not qos and (packet.dup or packet.packet_id):
        raise EncodeError(f"PUBLISH of QoS 0 with DUP {packet.dup} and packet identifier {packet.packet_id}")
    by_alias = version == V5 and packet.properties is not None and packet.properties.topic_alias is not None
    body = bytearray(b"\x00\x00" if by_alias and not packet.topic else _topic(packet.topic))
    if qos:
        body += _packet_id(packet.packet_id)
    if version == V5:
        body += encode_properties(packet.properties, PropertyPlace.PUBLISH)
    body += packet.payload
    return _framed(0x30 | packet.dup << 3 | qos << 1 | packet.retain, bytes(body))


def _encode_acknowledgement(
    first: int, packet: Puback | Pubrec | Pubrel | Pubcomp, place: PropertyPlace, version: ProtocolVersion
) -> bytes:
    """The shortest form: without properties when there are none, without reason when it is success."""
    body = _packet_id(packet.packet_id)
    if version == V5 and (packet.reason_code or packet.properties is not None):
        body += encode_integer(packet.reason_code, 1)
        if packet.properties is not None:
            body += encode_properties(packet.properties, place)
    return _framed(first, body)


def _encode_reason(
    first: int, packet: Disconnect | Auth, place: PropertyPlace, version: ProtocolVersion
) -> bytes:
    """DISCONNECT and AUTH: empty when there is nothing to say, else with a property length, be it 0.

    Without that length the packet would be a byte shorter, but clients are about (paho.golang before 0.23) that then
    take the end of the packet for the end of the connection and miss the reason.
    """
    body = b""
    if version == V5 and (packet.reason_code or packet.properties is not None):
        body = encode_integer(packet.reason_code, 1) + encode_properties(packet.properties, place)
    return _framed(first, body)


def _connect_body(packet: Connect, version: ProtocolVersion) -> bytes:
    if packet.version != version:
        raise EncodeError(f"CONNECT for {packet.version!r} to be written for {version!r}")
    v5 = version == V5
    if packet.password is not None and packet.username is None and not v5:
        raise EncodeError("password without a user name before MQTT 5.0 [MQTT-3.1.2-22]")
    flags = (packet.username is not None) << 7 | (packet.password is not None) << 6 | packet.clean_start << 1
    will = packet.will
    if will is not None:
        flags |= will.retain << 5 | _qos(will.qos) << 3 | 0x04
    body = bytearray(encode_text("MQIsdp" if version == ProtocolVersion.V31 else "MQTT"))
    body += bytes((version, flags)) + encode_integer(packet.keep_alive_s, 2)
    if v5:
        body += encode_properties(packet.properties, PropertyPlace.CONNECT)
    body += encode_text(packet.client_id)
    if will is not None:
        body += _will(will, v5)
    if packet.username is not None:
        body += encode_text(packet.username)
    if packet.password is not None:
        body += encode_binary(packet.password)
    return bytes(body)


def _will(will: Will, v5: bool) -> bytes:
    properties = encode_properties(will.properties, PropertyPlace.WILL) if v5 else b""
    return properties + _topic(will.topic) + encode_binary(will.payload)


def _connack_body(packet: Connack, version: ProtocolVersion) -> bytes:
    code = packet.reason_code
    if packet.session_present and code:
        raise EncodeError(f"CONNACK refuses with {code} and says that a session is present [MQTT-3.2.2-6]")
    if version == V5:
        head = bytes((packet.session_present,)) + encode_integer(code, 1)
        return head + _connack_properties(packet.properties)
    if code > ConnectReturnCode.NOT_AUTHORIZED:
        if code not in CONNACK_CODES:
            raise EncodeError(f"reason code {code} is not allowed in CONNACK")
        code = to_connect_return_code(ReasonCode(code))
    # The session present flag is not known to 3.1 [MQTT 3.1, 3.2].
    return bytes((packet.session_present and version == ProtocolVersion.V311, code))


_as_before = lru_cache(CONNACKS_REMEMBERED)(encode_properties)


def _connack_properties(properties: Properties | None) -> bytes:
    """Most clients are told the same; what is said to one alone is not remembered."""
    if (
        properties is None
        or properties.assigned_client_identifier is not None
        or properties.authentication_data is not None
        or properties.response_information is not None
        or properties.reason_string is not None
        or properties.user_properties
    ):
        return encode_properties(properties, PropertyPlace.CONNACK)
    return _as_before(properties, PropertyPlace.CONNACK)


def _subscribe_body(packet: Subscribe, version: ProtocolVersion) -> bytes:
    if not packet.subscriptions:
        raise EncodeError("SUBSCRIBE without a topic filter [MQTT-3.8.3-2]")
    v5 = version == V5
    body = bytearray(_packet_id(packet.packet_id))
    if v5:
        body += encode_properties(packet.properties, PropertyPlace.SUBSCRIBE)
    for subscription in packet.subscriptions:
        body += _filter(subscription.topic_filter)
        body.append(_options(subscription) if v5 else _qos(subscription.qos))
    return bytes(body)


def _options(subscription: Subscription) -> int:
    if not 0 <= subscription.retain_handling <= 2:
        raise EncodeError(f"retain handling {subscription.retain_handling} is not within 0..2")
    if subscription.no_local and subscription.topic_filter.startswith(SHARE_PREFIX):
        raise EncodeError("no local on a shared subscription [MQTT-3.8.3-4]")
    return (
        subscription.retain_handling << 4
        | subscription.retain_as_published << 3
        | subscription.no_local << 2
        | _qos(subscription.qos)
    )


def _suback_body(packet: Suback, version: ProtocolVersion) -> bytes:
    body = _packet_id(packet.packet_id)
    if not packet.reason_codes:
        raise EncodeError("SUBACK without a reason code")
    if version == V5:
        properties = encode_properties(packet.properties, PropertyPlace.SUBACK)
        return body + properties + _codes(packet.reason_codes)
    return body + _codes(tuple(min(code, 0x80) for code in packet.reason_codes))


def _unsubscribe_body(packet: Unsubscribe, version: ProtocolVersion) -> bytes:
    if not packet.topic_filters:
        raise EncodeError("UNSUBSCRIBE without a topic filter [MQTT-3.10.3-2]")
    body = bytearray(_packet_id(packet.packet_id))
    if version == V5:
        body += encode_properties(packet.properties, PropertyPlace.UNSUBSCRIBE)
    for topic_filter in packet.topic_filters:
        body += _filter(topic_filter)
    return bytes(body)


def _unsuback_body(packet: Unsuback, version: ProtocolVersion) -> bytes:
    body = _packet_id(packet.packet_id)
    if version != V5:
        return body
    if not packet.reason_codes:
        raise EncodeError("UNSUBACK without a reason code")
    properties = encode_properties(packet.properties, PropertyPlace.UNSUBACK)
    return body + properties + _codes(packet.reason_codes)


def _codes(reason_codes: tuple[int, ...]) -> bytes:
    return b"".join(encode_integer(code, 1) for code in reason_codes)
