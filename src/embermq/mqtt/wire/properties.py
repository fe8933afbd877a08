"""The properties of MQTT 5.0: one value with all of them, and their codec [MQTT 5.0, 2.2.2].

The table below says for each property its identifier, data type, the packets it may stand in and the values
it may take; the codec is that table and two loops.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from functools import lru_cache
from typing import Final, TypeAlias, cast

import msgspec

from embermq.mqtt.wire.data_types import (
    encode_binary,
    encode_integer,
    encode_text,
    encode_varint,
    read_binary,
    read_text,
    read_u8,
    read_u16,
    read_u32,
    read_varint,
)
from embermq.mqtt.wire.errors import (
    EncodeError,
    InvalidTopic,
    MalformedPacket,
    ProtocolViolation,
)
from embermq.mqtt.wire.reason_codes import ReasonCode


class Properties(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Every property of MQTT 5.0; None (or empty) means that it is absent, which is not its default value.

    Intervals are seconds, sizes bytes. ``payload_format_indicator`` and ``maximum_qos`` are 0 or 1. Only user
    properties, and subscription identifiers in a PUBLISH, may be there more than once; their order is kept.
    """

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: bool | None = None
    will_delay_interval: int | None = None
    request_response_information: bool | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: bool | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: bool | None = None
    subscription_identifier_available: bool | None = None
    shared_subscription_available: bool | None = None


class PropertyPlace(IntEnum):
    """The packet that a block of properties belongs to; one bit each, so that a set of places is a number."""

    CONNECT = 1 << 0
    WILL = 1 << 1
    CONNACK = 1 << 2
    PUBLISH = 1 << 3
    PUBACK = 1 << 4
    PUBREC = 1 << 5
    PUBREL = 1 << 6
    PUBCOMP = 1 << 7
    SUBSCRIBE = 1 << 8
    SUBACK = 1 << 9
    UNSUBSCRIBE = 1 << 10
    UNSUBACK = 1 << 11
    DISCONNECT = 1 << 12
    AUTH = 1 << 13


class _Kind(Enum):
    FLAG = auto()  # one byte, 0 or 1, a bool here
    BYTE = auto()
    U16 = auto()
    U32 = auto()
    VARINT = auto()
    TEXT = auto()
    BINARY = auto()
    PAIR = auto()


_Value: TypeAlias = int | bool | str | bytes | tuple[str, str]
_Field: TypeAlias = _Value | tuple[int, ...] | tuple[tuple[str, str], ...] | None


class _Rule(msgspec.Struct, frozen=True):
    """How a property is written, and where it may stand."""

    identifier: int
    name: str
    kind: _Kind
    places: int
    minimum: int = 0
    maximum: int = 0xFFFF_FFFF
    repeats: int = 0  # the places where it may stand more than once
    clause: str | None = None  # what a value outside minimum..maximum breaks
    reason_code: ReasonCode = ReasonCode.PROTOCOL_ERROR


_P = PropertyPlace
_MESSAGE = _P.PUBLISH | _P.WILL
_SESSION = _P.CONNECT | _P.CONNACK
_EVERYWHERE = sum(_P)
_EXPLAINED = _EVERYWHERE & ~(_P.CONNECT | _P.WILL | _P.PUBLISH | _P.SUBSCRIBE | _P.UNSUBSCRIBE)

NAME_REMEMBERED_MAX = 64
NAMES_REMEMBERED = 1_024
"""Names of user properties, up to so many characters, whose bytes are kept."""
_USER_PROPERTY: Final = b"\x26"
_RULES: Final = (
    _Rule(0x01, "payload_format_indicator", _Kind.BYTE, _MESSAGE, maximum=1, clause="MQTT-3.3.2-4"),
    _Rule(0x02, "message_expiry_interval", _Kind.U32, _MESSAGE),
    _Rule(0x03, "content_type", _Kind.TEXT, _MESSAGE),
    _Rule(0x08, "response_topic", _Kind.TEXT, _MESSAGE),
    _Rule(0x09, "correlation_data", _Kind.BINARY, _MESSAGE),
    _Rule(
        0x0B,
        "subscription_identifiers",
        _Kind.VARINT,
        _P.PUBLISH | _P.SUBSCRIBE,
        minimum=1,
        repeats=_P.PUBLISH,
        clause="MQTT 5.0, 3.8.2.1.2",
    ),
    _Rule(0x11, "session_expiry_interval", _Kind.U32, _SESSION | _P.DISCONNECT),
    _Rule(0x12, "assigned_client_identifier", _Kind.TEXT, _P.CONNACK),
    _Rule(0x13, "server_keep_alive", _Kind.U16, _P.CONNACK),
    _Rule(0x15, "authentication_method", _Kind.TEXT, _SESSION | _P.AUTH),
    _Rule(0x16, "authentication_data", _Kind.BINARY, _SESSION | _P.AUTH),
    _Rule(
        0x17, "request_problem_information", _Kind.FLAG, _P.CONNECT, maximum=1, clause="MQTT 5.0, 3.1.2.11.7"
    ),
    _Rule(0x18, "will_delay_interval", _Kind.U32, _P.WILL),
    _Rule(
        0x19, "request_response_information", _Kind.FLAG, _P.CONNECT, maximum=1, clause="MQTT 5.0, 3.1.2.11.6"
    ),
    _Rule(0x1A, "response_information", _Kind.TEXT, _P.CONNACK),
    _Rule(0x1C, "server_reference", _Kind.TEXT, _P.CONNACK | _P.DISCONNECT),
    _Rule(0x1F, "reason_string", _Kind.TEXT, _EXPLAINED),
    _Rule(0x21, "receive_maximum", _Kind.U16, _SESSION, minimum=1, clause="MQTT 5.0, 3.1.2.11.3"),
    _Rule(0x22, "topic_alias_maximum", _Kind.U16, _SESSION),
    _Rule(
        0x23,
        "topic_alias",
        _Kind.U16,
        _P.PUBLISH,
        minimum=1,
        clause="MQTT-3.3.2-8",
        reason_code=ReasonCode.TOPIC_ALIAS_INVALID,
    ),
    _Rule(0x24, "maximum_qos", _Kind.BYTE, _P.CONNACK, maximum=1, clause="MQTT 5.0, 3.2.2.3.4"),
    _Rule(0x25, "retain_available", _Kind.FLAG, _P.CONNACK, maximum=1, clause="MQTT 5.0, 3.2.2.3.5"),
    _Rule(_USER_PROPERTY[0], "user_properties", _Kind.PAIR, _EVERYWHERE, repeats=_EVERYWHERE),
    _Rule(0x27, "maximum_packet_size", _Kind.U32, _SESSION, minimum=1, clause="MQTT 5.0, 3.1.2.11.4"),
    _Rule(
        0x28,
        "wildcard_subscription_available",
        _Kind.FLAG,
        _P.CONNACK,
        maximum=1,
        clause="MQTT 5.0, 3.2.2.3.11",
    ),
    _Rule(
        0x29,
        "subscription_identifier_available",
        _Kind.FLAG,
        _P.CONNACK,
        maximum=1,
        clause="MQTT 5.0, 3.2.2.3.12",
    ),
    _Rule(
        0x2A,
        "shared_subscription_available",
        _Kind.FLAG,
        _P.CONNACK,
        maximum=1,
        clause="MQTT 5.0, 3.2.2.3.13",
    ),
)
_PUBLISH_RULES: Final = tuple(rule for rule in _RULES if rule.places & _P.PUBLISH)
_BY_IDENTIFIER: Final = {rule.identifier: rule for rule in _RULES}


def decode_properties(data: bytes, start: int, packet: PropertyPlace) -> tuple[Properties | None, int]:
    """Read a block of properties with its length; returns it (None when empty) and the position after it.

    The end of ``data`` is the end of the packet. Raises `MalformedPacket` for what cannot be read or may not
    stand here, `ProtocolViolation` for a property that is there twice and for a value that is not allowed,
    `InvalidTopic` for a response topic with wildcards.
    """
    size, begin = read_varint(data, start)
    end = begin + size
    if end > len(data):
        raise MalformedPacket(
            f"properties of {size} bytes, only {len(data) - begin} are left in the packet", "MQTT-2.2.2-1"
        )
    if not size:
        return None, end
    block = data[begin:end]
    values: dict[str, _Value] = {}
    user_properties: list[tuple[str, str]] = []
    subscription_identifiers: list[int] = []
    position = 0
    while position < size:
        # Identifiers are variable byte integers, but all that exist have one byte.
        rule = _BY_IDENTIFIER.get(block[position])
        if rule is None:
            identifier, _ = read_varint(block, position)
            raise MalformedPacket(f"property 0x{identifier:02X} does not exist", "MQTT 5.0, 2.2.2.2")
        if not rule.places & packet:
            raise MalformedPacket(
                f"property {rule.name} is not allowed in {packet.name}", "MQTT 5.0, 2.2.2.2"
            )
        value, position = _read(rule, block, position + 1)
        if rule.kind is _Kind.PAIR:
            user_properties.append(value)  # type: ignore[arg-type]  # a pair, the table says so
        elif rule.kind is _Kind.VARINT:
            if subscription_identifiers and not rule.repeats & packet:
                raise _twice(rule, packet)
            subscription_identifiers.append(value)  # type: ignore[arg-type]
        elif rule.name in values:
            raise _twice(rule, packet)
        else:
            values[rule.name] = value
    fields = cast("dict[str, _Field]", values)
    if user_properties:
        fields["user_properties"] = tuple(user_properties)
    if subscription_identifiers:
        fields["subscription_identifiers"] = tuple(subscription_identifiers)
    properties = Properties(**fields)  # type: ignore[arg-type]  # the table gives each field its type
    if properties.response_topic is not None:
        _check_response_topic(properties.response_topic)
    return properties, end


def of_message(properties: Properties) -> Properties | None:
    """Those of a PUBLISH or a will that travel with the message [MQTT-3.1.3-10]; None when there are none. An alias
    belongs to the connection, and the delay of a will to its session."""
    kept = Properties(
        payload_format_indicator=properties.payload_format_indicator,
        message_expiry_interval=properties.message_expiry_interval,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        user_properties=properties.user_properties,
    )
    return None if kept == Properties() else kept


def encode_properties(properties: Properties | None, place: PropertyPlace | None = None) -> bytes:
    """The block with its length in front; ``None`` is the empty block, one zero byte.

    With ``place`` it also raises `EncodeError` for a property that may not stand there.
    """
    return b"\x00" if properties is None else _encode(properties, _RULES, place)


def encode_message_properties(properties: Properties | None, more: bytes = b"") -> bytes:
    """The same of those that a PUBLISH may have; others are left out. `more` are user properties behind them, by
    `encode_user_property`."""
    if properties is None:
        return encode_varint(len(more)) + more
    return _encode(properties, _PUBLISH_RULES, None, more)


def encode_user_property(name: str, text: str) -> bytes:
    """One of a block. Raises `EncodeError`."""
    head = _short_name(name) if len(name) <= NAME_REMEMBERED_MAX else encode_user_property_name(name)
    return head + encode_text(text)


def encode_user_property_name(name: str) -> bytes:
    """What stands before the text of one. Raises `EncodeError`."""
    return _USER_PROPERTY + encode_text(name)


_short_name = lru_cache(NAMES_REMEMBERED)(encode_user_property_name)
"""Of a user property, with its identifier in front: the same few names come with every message."""


def _encode(
    properties: Properties, rules: tuple[_Rule, ...], place: PropertyPlace | None, more: bytes = b""
) -> bytes:
    parts: list[bytes] = []
    for rule in rules:
        field: _Field = getattr(properties, rule.name)
        if field is None or field == ():
            continue
        if place is not None and not rule.places & place:
            raise EncodeError(f"property {rule.name} is not allowed in {place.name}")
        head = bytes((rule.identifier,))
        if rule.kind is _Kind.PAIR:
            for name, text in cast("tuple[tuple[str, str], ...]", field):
                parts.append(encode_user_property(name, text))
        elif rule.kind is _Kind.VARINT:
            identifiers = cast("tuple[int, ...]", field)
            if place is not None and len(identifiers) > 1 and not rule.repeats & place:
                raise EncodeError(f"property {rule.name} may stand in {place.name} only once")
            parts.extend(head + _written(rule, identifier) for identifier in identifiers)
        else:
            parts.append(head + _written(rule, cast(_Value, field)))
    parts.append(more)
    block = b"".join(parts)
    return encode_varint(len(block)) + block


def is_payload_format_valid(properties: Properties | None, payload: bytes) -> bool:
    """Whether a payload is what its format indicator says: well-formed UTF-8 when it is 1 [MQTT-3.3.2-4]."""
    if properties is None or properties.payload_format_indicator != 1:
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read(rule: _Rule, block: bytes, position: int) -> tuple[_Value, int]:
    kind = rule.kind
    if kind is _Kind.TEXT:
        return read_text(block, position)
    if kind is _Kind.BINARY:
        return read_binary(block, position)
    if kind is _Kind.PAIR:
        name, position = read_text(block, position)
        text, position = read_text(block, position)
        return (name, text), position
    if kind is _Kind.U16:
        number, position = read_u16(block, position)
    elif kind is _Kind.U32:
        number, position = read_u32(block, position)
    elif kind is _Kind.VARINT:
        number, position = read_varint(block, position)
    else:
        number, position = read_u8(block, position)
    if not rule.minimum <= number <= rule.maximum:
        raise ProtocolViolation(
            f"property {rule.name} is {number}, allowed is {rule.minimum}..{rule.maximum}",
            rule.clause,
            rule.reason_code,
        )
    return (number == 1 if kind is _Kind.FLAG else number), position


def _written(rule: _Rule, value: _Value) -> bytes:
    """The value without its identifier, checked against the table."""
    if isinstance(value, str):
        return encode_text(value)
    if isinstance(value, bytes):
        return encode_binary(value)
    number = cast(int, value)
    if not rule.minimum <= number <= rule.maximum:
        raise EncodeError(f"property {rule.name} is {number}, allowed is {rule.minimum}..{rule.maximum}")
    if rule.kind is _Kind.VARINT:
        return encode_varint(number)
    size = 4 if rule.kind is _Kind.U32 else 2 if rule.kind is _Kind.U16 else 1
    return encode_integer(number, size)


def _check_response_topic(topic: str) -> None:
    if not topic:
        raise InvalidTopic(ReasonCode.TOPIC_NAME_INVALID, "response topic is empty", "MQTT-4.7.3-1")
    if "+" in topic or "#" in topic:
        raise InvalidTopic(
            ReasonCode.TOPIC_NAME_INVALID,
            f"response topic {topic[:80]!r} contains a wildcard",
            "MQTT-3.3.2-14",
        )


def _twice(rule: _Rule, packet: PropertyPlace) -> ProtocolViolation:
    return ProtocolViolation(f"property {rule.name} is in {packet.name} more than once", "MQTT 5.0, 2.2.2.2")
