"""Reading the bodies of all packets that are not in the decoder's hot loop.

Each reader takes the whole body (what follows the fixed header), so the end of ``data`` is the end of the
packet.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import SHARE_PREFIX, validate_filter, validate_topic
from embermq.mqtt.wire.data_types import decode_text, read_binary, read_text, read_u8, read_u16
from embermq.mqtt.wire.errors import (
    InvalidTopic,
    MalformedPacket,
    ProtocolViolation,
    UnsupportedVersion,
)
from embermq.mqtt.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from embermq.mqtt.wire.properties import Properties, PropertyPlace, decode_properties
from embermq.mqtt.wire.reason_codes import (
    AUTH_CODES_OF_CLIENT,
    AUTH_CODES_OF_SERVER,
    CONNACK_CODES,
    DISCONNECT_CODES_OF_CLIENT,
    DISCONNECT_CODES_OF_SERVER,
    PUBACK_CODES,
    PUBREL_CODES,
    SUBACK_CODES,
    SUBACK_CODES_3,
    UNSUBACK_CODES,
    ConnectReturnCode,
    ReasonCode,
)
from embermq.mqtt.wire.version import ProtocolVersion, Role

FILTERS_MAX: Final = 20_000
"""Topic filters of one SUBSCRIBE or UNSUBSCRIBE: nobody else gets a turn while they are read and answered."""

REMEMBERED_BYTES_MAX: Final = 32
"""Of the properties of a CONNECT."""
BLOCKS_REMEMBERED: Final = 512
AUTHENTICATION_DATA: Final = b"\x16"
USER_PROPERTY: Final = b"\x26"

Acknowledgement: TypeAlias = Puback | Pubrec | Pubrel | Pubcomp

_PROTOCOL_NAMES: Final = {
    ("MQIsdp", 3): ProtocolVersion.V31,
    ("MQTT", 4): ProtocolVersion.V311,
    ("MQTT", 5): ProtocolVersion.V5,
}
_ACKNOWLEDGEMENTS: Final[dict[type[Acknowledgement], tuple[PropertyPlace, frozenset[int], str]]] = {
    Puback: (PropertyPlace.PUBACK, PUBACK_CODES, "MQTT-3.4.2-1"),
    Pubrec: (PropertyPlace.PUBREC, PUBACK_CODES, "MQTT-3.5.2-1"),
    Pubrel: (PropertyPlace.PUBREL, PUBREL_CODES, "MQTT-3.6.2-1"),
    Pubcomp: (PropertyPlace.PUBCOMP, PUBREL_CODES, "MQTT-3.7.2-1"),
}


def read_protocol(data: bytes) -> tuple[ProtocolVersion, int]:
    """The version that a CONNECT body asks for, and the position after its protocol level.

    Raises `UnsupportedVersion` for every other name or level [MQTT-3.1.2-1] [MQTT-3.1.2-2].
    """
    name, position = read_text(data, 0)
    level, position = read_u8(data, position)
    version = _PROTOCOL_NAMES.get((name, level))
    if version is None:
        raise UnsupportedVersion(name, level)
    return version, position


def guess_version(refused: UnsupportedVersion) -> ProtocolVersion | None:
    """In which version a client whose version we do not speak may understand a refusal; None: in none."""
    if refused.protocol_name == "MQIsdp":
        return ProtocolVersion.V31
    if refused.protocol_name != "MQTT":
        return None
    # Levels with the high bit set are bridges of the 3.x family.
    if ProtocolVersion.V5 < refused.level < 0x80:
        return ProtocolVersion.V5
    return ProtocolVersion.V311


def read_connect(data: bytes, position: int, version: ProtocolVersion) -> Connect:
    """CONNECT from its flags on [MQTT 5.0, 3.1]."""
    v5 = version is ProtocolVersion.V5
    flags, position = read_u8(data, position)
    _check_connect_flags(flags, version)
    keep_alive_s, position = read_u16(data, position)
    properties: Properties | None = None
    if v5:
        properties, position = _read_connect_properties(data, position)
        _check_authentication(properties)
    client_id, position = read_text(data, position)
    will: Will | None = None
    if flags & 0x04:
        will, position = _read_will(data, position, flags, v5)
    # In 3.1 the length wins over the flags: both strings may be missing at the end [MQTT 3.1, 3.1].
    may_lack = version is ProtocolVersion.V31
    username: str | None = None
    if flags & 0x80 and not (may_lack and position == len(data)):
        username, position = read_text(data, position)
    password: bytes | None = None
    if flags & 0x40 and not (may_lack and position == len(data)):
        password, position = read_binary(data, position)
    _check_end(data, position, "CONNECT")
    return Connect(client_id, version, bool(flags & 0x02), keep_alive_s, username, password, will, properties)


def _read_connect_properties(data: bytes, position: int) -> tuple[Properties | None, int]:
    """Clients of one kind all send the same few bytes; what may be a secret or a client's own is not remembered."""
    if position < len(data) and data[position] <= REMEMBERED_BYTES_MAX:
        end = position + 1 + data[position]
        block = data[position:end]
        if end <= len(data) and AUTHENTICATION_DATA not in block and USER_PROPERTY not in block:
            return _as_before(block), end
    return decode_properties(data, position, PropertyPlace.CONNECT)


@lru_cache(BLOCKS_REMEMBERED)
def _as_before(block: bytes) -> Properties | None:
    return decode_properties(block, 0, PropertyPlace.CONNECT)[0]


def read_connack(data: bytes, version: ProtocolVersion) -> Connack:
    """CONNACK [MQTT 5.0, 3.2]; in 3.1 the first byte is unused."""
    flags, position = read_u8(data, 0)
    code, position = read_u8(data, position)
    if version is ProtocolVersion.V31:
        flags = 0
    if flags > 1:
        raise MalformedPacket(f"reserved CONNACK flags 0x{flags:02X} are set", "MQTT-3.2.2-1")
    properties: Properties | None = None
    if version is ProtocolVersion.V5:
        _check_code(code, CONNACK_CODES, "CONNACK", "MQTT-3.2.2-8")
        properties, position = decode_properties(data, position, PropertyPlace.CONNACK)
        _check_authentication(properties)
    elif code > ConnectReturnCode.NOT_AUTHORIZED:
        raise MalformedPacket(f"CONNACK return code {code} is reserved", "MQTT 3.1.1, 3.2.2.3")
    _check_end(data, position, "CONNACK")
    if flags and code:
        raise ProtocolViolation(f"CONNACK with a session present refuses with {code}", "MQTT-3.2.2-6")
    return Connack(flags == 1, code, properties)


def read_acknowledgement(
    kind: type[Acknowledgement], data: bytes, version: ProtocolVersion
) -> Acknowledgement:
    """PUBACK, PUBREC, PUBREL and PUBCOMP; in 5.0 reason and properties may be missing [MQTT 5.0, 3.4.2]."""
    packet_id, position = read_packet_id(data, 0)
    if version is not ProtocolVersion.V5 or position == len(data):
        _check_end(data, position, kind.__name__.upper())
        return kind(packet_id)
    place, codes, clause = _ACKNOWLEDGEMENTS[kind]
    code, position = read_u8(data, position)
    _check_code(code, codes, place.name, clause)
    properties, position = _read_trailing_properties(data, position, place)
    return kind(packet_id, code, properties)


def _too_many_filters(name: str) -> ProtocolViolation:
    text = f"{name} has more than {FILTERS_MAX} topic filters"
    return ProtocolViolation(text, reason_code=ReasonCode.QUOTA_EXCEEDED)


def read_subscribe(data: bytes, version: ProtocolVersion) -> Subscribe:
    """SUBSCRIBE [MQTT 5.0, 3.8]."""
    packet_id, position = read_packet_id(data, 0)
    v5 = version is ProtocolVersion.V5
    properties: Properties | None = None
    if v5:
        properties, position = decode_properties(data, position, PropertyPlace.SUBSCRIBE)
    subscriptions: list[Subscription] = []
    while position < len(data):
        topic_filter, position = _read_filter(data, position)
        options, position = read_u8(data, position)
        subscriptions.append(_subscription(topic_filter, options, v5))
        if len(subscriptions) > FILTERS_MAX:
            raise _too_many_filters("SUBSCRIBE")
    if not subscriptions:
        raise ProtocolViolation("SUBSCRIBE without a topic filter", "MQTT-3.8.3-2")
    return Subscribe(packet_id, tuple(subscriptions), properties)


def read_suback(data: bytes, version: ProtocolVersion) -> Suback:
    """SUBACK [MQTT 5.0, 3.9]."""
    packet_id, position = read_packet_id(data, 0)
    v5 = version is ProtocolVersion.V5
    properties: Properties | None = None
    if v5:
        properties, position = decode_properties(data, position, PropertyPlace.SUBACK)
    codes = _read_codes(data, position, SUBACK_CODES if v5 else SUBACK_CODES_3, "SUBACK", "MQTT-3.9.3-2")
    return Suback(packet_id, codes, properties)


def read_unsubscribe(data: bytes, version: ProtocolVersion) -> Unsubscribe:
    """UNSUBSCRIBE [MQTT 5.0, 3.10]."""
    packet_id, position = read_packet_id(data, 0)
    properties: Properties | None = None
    if version is ProtocolVersion.V5:
        properties, position = decode_properties(data, position, PropertyPlace.UNSUBSCRIBE)
    filters: list[str] = []
    while position < len(data):
        topic_filter, position = _read_filter(data, position)
        filters.append(topic_filter)
        if len(filters) > FILTERS_MAX:
            raise _too_many_filters("UNSUBSCRIBE")
    if not filters:
        raise ProtocolViolation("UNSUBSCRIBE without a topic filter", "MQTT-3.10.3-2")
    return Unsubscribe(packet_id, tuple(filters), properties)


def read_unsuback(data: bytes, version: ProtocolVersion) -> Unsuback:
    """UNSUBACK [MQTT 5.0, 3.11]; in 3.x it is only a packet id."""
    packet_id, position = read_packet_id(data, 0)
    if version is not ProtocolVersion.V5:
        _check_end(data, position, "UNSUBACK")
        return Unsuback(packet_id)
    properties, position = decode_properties(data, position, PropertyPlace.UNSUBACK)
    codes = _read_codes(data, position, UNSUBACK_CODES, "UNSUBACK", "MQTT-3.11.3-2")
    return Unsuback(packet_id, codes, properties)


def read_disconnect(data: bytes, version: ProtocolVersion, role: Role) -> Disconnect:
    """DISCONNECT [MQTT 5.0, 3.14]; empty in 3.x, where only clients send it."""
    if version is not ProtocolVersion.V5:
        if role is Role.CLIENT:
            raise ProtocolViolation("DISCONNECT from a 3.x server", "MQTT 3.1.1, 3.14")
        _check_end(data, 0, "DISCONNECT")
        return Disconnect()
    if not data:
        return Disconnect()
    code, position = read_u8(data, 0)
    server = role is Role.SERVER
    codes = DISCONNECT_CODES_OF_CLIENT if server else DISCONNECT_CODES_OF_SERVER
    _check_code(code, codes, "DISCONNECT", "MQTT-3.14.2-1")
    properties, position = _read_trailing_properties(data, position, PropertyPlace.DISCONNECT)
    if properties is not None and properties.session_expiry_interval is not None and not server:
        raise ProtocolViolation("DISCONNECT of a server sets a session expiry interval", "MQTT-3.14.2-2")
    return Disconnect(code, properties)


def read_auth(data: bytes, version: ProtocolVersion, role: Role) -> Auth:
    """AUTH [MQTT 5.0, 3.15]."""
    if version is not ProtocolVersion.V5:
        raise MalformedPacket("packet type 15 does not exist before MQTT 5.0", "MQTT 3.1.1, 2.2.1")
    if not data:
        code, properties = 0, None
    else:
        code, position = read_u8(data, 0)
        properties, position = _read_trailing_properties(data, position, PropertyPlace.AUTH)
    codes = AUTH_CODES_OF_CLIENT if role is Role.SERVER else AUTH_CODES_OF_SERVER
    _check_code(code, codes, "AUTH", "MQTT-3.15.2-1")
    if code and (properties is None or properties.authentication_method is None):
        raise ProtocolViolation("AUTH without an authentication method", "MQTT 5.0, 3.15.2.2.2")
    _check_authentication(properties)
    return Auth(code, properties)


def read_packet_id(data: bytes, position: int) -> tuple[int, int]:
    """A packet identifier; 0 is none [MQTT-2.2.1-3]."""
    packet_id, position = read_u16(data, position)
    if not packet_id:
        raise ProtocolViolation("packet identifier 0", "MQTT-2.2.1-3")
    return packet_id, position


def read_topic(raw: bytes) -> str:
    """The topic name of a PUBLISH or will from its bytes, at least one character."""
    topic = decode_text(raw)
    try:
        validate_topic(topic)
    except TopicError as error:
        raise MalformedPacket(error.message, error.clause) from None
    return topic


def _check_connect_flags(flags: int, version: ProtocolVersion) -> None:
    if flags & 0x01 and version is not ProtocolVersion.V31:
        raise MalformedPacket("reserved CONNECT flag is set", "MQTT-3.1.2-3")
    will_qos = flags >> 3 & 3
    if flags & 0x04:
        if will_qos == 3:
            raise MalformedPacket("will QoS is 3", "MQTT-3.1.2-12")
    else:
        if will_qos:
            raise MalformedPacket(f"will QoS is {will_qos} without a will", "MQTT-3.1.2-11")
        if flags & 0x20:
            raise MalformedPacket("will retain is set without a will", "MQTT-3.1.2-13")
    if flags & 0x40 and not flags & 0x80 and version is not ProtocolVersion.V5:
        raise MalformedPacket("password without a user name before MQTT 5.0", "MQTT-3.1.2-22")


def _read_will(data: bytes, position: int, flags: int, v5: bool) -> tuple[Will, int]:
    properties: Properties | None = None
    if v5:
        properties, position = decode_properties(data, position, PropertyPlace.WILL)
    raw, position = read_binary(data, position)
    topic = read_topic(raw)
    payload, position = read_binary(data, position)
    return Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20), properties), position


def _read_filter(data: bytes, position: int) -> tuple[str, int]:
    topic_filter, position = read_text(data, position)
    if not topic_filter:
        raise MalformedPacket("topic filter is empty", "MQTT-4.7.3-1")
    try:
        validate_filter(topic_filter)
    except TopicError as error:
        raise InvalidTopic(ReasonCode.TOPIC_FILTER_INVALID, error.message, error.clause) from None
    return topic_filter, position


def _subscription(topic_filter: str, options: int, v5: bool) -> Subscription:
    """Check and take apart the options byte [MQTT 5.0, 3.8.3.1]."""
    if options & (0xC0 if v5 else 0xFC):
        raise MalformedPacket(f"reserved bits in subscription options 0x{options:02X}", "MQTT-3.8.3-5")
    qos = options & 3
    if qos == 3:
        raise ProtocolViolation("requested QoS is 3", "MQTT 5.0, 3.8.3.1")
    retain_handling = options >> 4
    if retain_handling == 3:
        raise ProtocolViolation("retain handling is 3", "MQTT 5.0, 3.8.3.1")
    no_local = bool(options & 0x04)
    if no_local and topic_filter.startswith(SHARE_PREFIX):
        raise ProtocolViolation("no local on a shared subscription", "MQTT-3.8.3-4")
    return Subscription(topic_filter, qos, no_local, bool(options & 0x08), retain_handling)


def _read_codes(
    data: bytes, position: int, allowed: frozenset[int], packet: str, clause: str
) -> tuple[int, ...]:
    codes = tuple(data[position:])
    if not codes:
        raise ProtocolViolation(f"{packet} without a reason code", clause)
    for code in codes:
        _check_code(code, allowed, packet, clause)
    return codes


def _read_trailing_properties(
    data: bytes, position: int, place: PropertyPlace
) -> tuple[Properties | None, int]:
    """Properties that may be left out at the end of a packet, their length included."""
    if position == len(data):
        return None, position
    properties, position = decode_properties(data, position, place)
    _check_end(data, position, place.name)
    return properties, position


def _check_authentication(properties: Properties | None) -> None:
    if (
        properties is not None
        and properties.authentication_data is not None
        and properties.authentication_method is None
    ):
        raise ProtocolViolation("authentication data without a method", "MQTT 5.0, 3.1.2.11.10")


def _check_code(code: int, allowed: frozenset[int], packet: str, clause: str) -> None:
    if code not in allowed:
        raise ProtocolViolation(f"reason code 0x{code:02X} is not allowed in {packet}", clause)


def _check_end(data: bytes, position: int, packet: str) -> None:
    if position != len(data):
        raise MalformedPacket(f"{len(data) - position} bytes too many in {packet}", "MQTT-4.13.1-1")
