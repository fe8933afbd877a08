"""Wire cases as data: bytes, who reads them, the packet they are or the error they are, and the clause.

The bytes are written out by hand; only the fixed header's length is computed. Codec tests decode, encode, cut and
split them; tests over a socket may send those that `Role.SERVER` reads.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion, Role

V31, V311, V5 = ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5
SERVER, CLIENT = Role.SERVER, Role.CLIENT

MALFORMED = ReasonCode.MALFORMED_PACKET
PROTOCOL = ReasonCode.PROTOCOL_ERROR
VERSION = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
TOPIC = ReasonCode.TOPIC_NAME_INVALID
FILTER = ReasonCode.TOPIC_FILTER_INVALID


@dataclass(frozen=True, slots=True)
class WireCase:
    """One packet that is right, and whether these bytes are the ones that the encoder writes."""

    name: str
    version: ProtocolVersion
    reader: Role
    data: bytes
    packet: Packet
    canonical: bool = True


@dataclass(frozen=True, slots=True)
class WireError:
    """One packet that is wrong, with the reason code and the clause that it breaks.

    ``opening`` says that it is read as the first packet of the connection.
    """

    name: str
    version: ProtocolVersion
    reader: Role
    data: bytes
    error: ReasonCode
    clause: str
    opening: bool = False


def frame(first: int, *parts: bytes) -> bytes:
    """A packet with a body of at most 127 bytes."""
    body = b"".join(parts)
    assert len(body) < 128
    return bytes((first, len(body))) + body


def block(*parts: bytes) -> bytes:
    """Properties of at most 127 bytes with their length."""
    joined = b"".join(parts)
    assert len(joined) < 128
    return bytes((len(joined),)) + joined


def of_all(name: str, reader: Role, data: bytes, packet: Packet) -> list[WireCase]:
    """A packet whose bytes are the same in all versions."""
    return [WireCase(f"{name}-{version.name}", version, reader, data, packet) for version in ProtocolVersion]


def of_3(name: str, reader: Role, data: bytes, packet: Packet) -> list[WireCase]:
    """A packet whose bytes are the same in 3.1 and 3.1.1."""
    return [WireCase(f"{name}-{version.name}", version, reader, data, packet) for version in (V31, V311)]


CONNECT_CASES: tuple[WireCase, ...] = (
    WireCase(
        "connect-31",
        V31,
        SERVER,
        frame(0x10, b"\0\x06MQIsdp\x03\x02\0\x3c\0\x03abc"),
        Connect("abc", V31, True, 60),
    ),
    WireCase(
        "connect-31-flags-are-not-used",
        V31,
        SERVER,
        frame(0x1F, b"\0\x06MQIsdp\x03\x02\0\x3c\0\x03abc"),
        Connect("abc", V31, True, 60),
        canonical=False,
    ),
    WireCase(
        "connect-31-lacks-user-and-password",
        V31,
        SERVER,
        frame(0x10, b"\0\x06MQIsdp\x03\xc2\0\x3c\0\x03abc"),
        Connect("abc", V31, True, 60),
        canonical=False,
    ),
    WireCase(
        "connect-31-lacks-password",
        V31,
        SERVER,
        frame(0x10, b"\0\x06MQIsdp\x03\xc2\0\x3c\0\x03abc\0\x01u"),
        Connect("abc", V31, True, 60, "u"),
        canonical=False,
    ),
    WireCase(
        "connect-311-least",
        V311,
        SERVER,
        frame(0x10, b"\0\x04MQTT\x04\x02\0\0\0\0"),
        Connect("", V311, True, 0),
    ),
    WireCase(
        "connect-311-padded-length",
        V311,
        SERVER,
        b"\x10\x8c\0\0\x04MQTT\x04\x02\0\0\0\0",
        Connect("", V311, True, 0),
        canonical=False,
    ),
    WireCase(
        "connect-311-all",
        V311,
        SERVER,
        frame(0x10, b"\0\x04MQTT\x04\xec\xff\xff\0\x01c\0\x03w/t\0\x02by\0\x02me\0\x02\0\xff"),
        Connect("c", V311, False, 65_535, "me", b"\0\xff", Will("w/t", b"by", 1, True)),
    ),
    WireCase(
        "connect-311-will-qos2-empty-payload",
        V311,
        SERVER,
        frame(0x10, b"\0\x04MQTT\x04\x16\0\x0a\0\x01c\0\x01w\0\0"),
        Connect("c", V311, True, 10, None, None, Will("w", b"", 2, False)),
    ),
    WireCase(
        "connect-311-user-alone",
        V311,
        SERVER,
        frame(0x10, b"\0\x04MQTT\x04\x82\0\x0a\0\x01c\0\0"),
        Connect("c", V311, True, 10, ""),
    ),
    WireCase(
        "connect-5-least",
        V5,
        SERVER,
        frame(0x10, b"\0\x04MQTT\x05\x02\0\0\0\0\0"),
        Connect("", V5, True, 0),
    ),
    WireCase(
        "connect-5-password-alone",
        V5,
        SERVER,
        frame(0x10, b"\0\x04MQTT\x05\x40\0\x0a\0\0\x01c\0\x01p"),
        Connect("c", V5, False, 10, None, b"p"),
    ),
    WireCase(
        "connect-5-all-properties",
        V5,
        SERVER,
        frame(
            0x10,
            b"\0\x04MQTT\x05\x00\0\x0a",
            block(
                b"\x11\xff\xff\xff\xff\x15\0\x01m\x16\0\x01d\x17\x00\x19\x01",
                b"\x21\0\x0a\x22\0\x05\x26\0\x01k\0\x01v\x26\0\x01k\0\0\x27\0\0\x10\0",
            ),
            b"\0\x01c",
        ),
        Connect(
            "c",
            V5,
            False,
            10,
            properties=Properties(
                session_expiry_interval=0xFFFF_FFFF,
                authentication_method="m",
                authentication_data=b"d",
                request_problem_information=False,
                request_response_information=True,
                receive_maximum=10,
                topic_alias_maximum=5,
                user_properties=(("k", "v"), ("k", "")),
                maximum_packet_size=4096,
            ),
        ),
    ),
    WireCase(
        "connect-5-all-will-properties",
        V5,
        SERVER,
        frame(
            0x10,
            b"\0\x04MQTT\x05\x2e\0\x0a\0\0\x01c",
            block(
                b"\x01\x01\x02\0\0\0\x05\x03\0\x01t\x08\0\x02r/\x09\0\x02\0\1",
                b"\x18\0\0\0\x07\x26\0\x01k\0\x01v",
            ),
            b"\0\x01w\0\x02hi",
        ),
        Connect(
            "c",
            V5,
            True,
            10,
            will=Will(
                "w",
                b"hi",
                1,
                True,
                Properties(
                    payload_format_indicator=1,
                    message_expiry_interval=5,
                    content_type="t",
                    response_topic="r/",
                    correlation_data=b"\0\1",
                    will_delay_interval=7,
                    user_properties=(("k", "v"),),
                ),
            ),
        ),
    ),
)

CONNACK_CASES: tuple[WireCase, ...] = (
    WireCase("connack-31", V31, CLIENT, b"\x20\x02\0\0", Connack(False, 0)),
    WireCase("connack-31-unused-byte", V31, CLIENT, b"\x20\x02\x01\0", Connack(False, 0), canonical=False),
    WireCase("connack-311-present", V311, CLIENT, b"\x20\x02\x01\0", Connack(True, 0)),
    WireCase("connack-311-refused", V311, CLIENT, b"\x20\x02\0\x05", Connack(False, 5)),
    WireCase("connack-5-least", V5, CLIENT, b"\x20\x03\0\0\0", Connack(False, 0)),
    WireCase("connack-5-refused", V5, CLIENT, b"\x20\x03\0\x87\0", Connack(False, 0x87)),
    WireCase(
        "connack-5-all-properties",
        V5,
        CLIENT,
        frame(
            0x20,
            b"\x01\0",
            block(
                b"\x11\0\0\0\x0a\x12\0\x01i\x13\0\x1e\x15\0\x01m\x16\0\x01d\x1a\0\x01r\x1c\0\x01s",
                b"\x1f\0\x01w\x21\0\x14\x22\0\x08\x24\x01\x25\x01\x26\0\x01k\0\x01v\x27\0\x01\0\0",
                b"\x28\x01\x29\x00\x2a\x01",
            ),
        ),
        Connack(
            True,
            0,
            Properties(
                session_expiry_interval=10,
                assigned_client_identifier="i",
                server_keep_alive=30,
                authentication_method="m",
                authentication_data=b"d",
                response_information="r",
                server_reference="s",
                reason_string="w",
                receive_maximum=20,
                topic_alias_maximum=8,
                maximum_qos=1,
                retain_available=True,
                user_properties=(("k", "v"),),
                maximum_packet_size=65_536,
                wildcard_subscription_available=True,
                subscription_identifier_available=False,
                shared_subscription_available=True,
            ),
        ),
    ),
)

PUBLISH_CASES: tuple[WireCase, ...] = (
    *of_3("publish-0", SERVER, b"\x30\x07\0\x03a/bhi", Publish("a/b", b"hi")),
    *of_3("publish-0-retain-empty", SERVER, b"\x31\x05\0\x03a/b", Publish("a/b", b"", retain=True)),
    *of_3("publish-1", SERVER, b"\x32\x09\0\x03a/b\0\x0ahi", Publish("a/b", b"hi", 1, 10)),
    *of_3(
        "publish-1-dup-retain", CLIENT, b"\x3b\x06\0\x01a\xff\xffx", Publish("a", b"x", 1, 65_535, True, True)
    ),
    *of_3("publish-2", SERVER, b"\x34\x06\0\x01a\0\x01x", Publish("a", b"x", 2, 1)),
    *of_3("publish-2-dup", SERVER, b"\x3c\x06\0\x01a\0\x01x", Publish("a", b"x", 2, 1, False, True)),
    WireCase(
        "publish-311-mark-is-kept", V311, SERVER, b"\x30\x06\0\x04\xef\xbb\xbfa", Publish("\ufeffa", b"")
    ),
    WireCase("publish-311-slash", V311, SERVER, b"\x30\x03\0\x01/", Publish("/", b"")),
    WireCase(
        "publish-311-four-byte-letter",
        V311,
        SERVER,
        b"\x30\x06\0\x04\xf0\x9f\x94\xa5",
        Publish("\U0001f525", b""),
    ),
    WireCase(
        "publish-311-two-byte-length",
        V311,
        SERVER,
        b"\x30\x80\x01\0\x01a" + b"x" * 125,
        Publish("a", b"x" * 125),
    ),
    WireCase(
        "publish-311-three-byte-length",
        V311,
        SERVER,
        b"\x30\x80\x80\x01\0\x01a" + b"x" * 16_381,
        Publish("a", b"x" * 16_381),
    ),
    WireCase(
        "publish-311-padded-length",
        V311,
        SERVER,
        b"\x30\x84\x80\x80\0\0\x01ax",
        Publish("a", b"x"),
        canonical=False,
    ),
    WireCase("publish-5-0", V5, SERVER, b"\x30\x06\0\x01a\0hi", Publish("a", b"hi")),
    WireCase("publish-5-1-empty", V5, SERVER, b"\x32\x06\0\x01a\0\x01\0", Publish("a", b"", 1, 1)),
    WireCase(
        "publish-5-alias-alone",
        V5,
        SERVER,
        b"\x32\x09\0\0\0\x01\x03\x23\0\x05x",
        Publish("", b"x", 1, 1, properties=Properties(topic_alias=5)),
    ),
    WireCase(
        "publish-5-alias-set",
        V5,
        SERVER,
        b"\x30\x07\0\x01a\x03\x23\xff\xff",
        Publish("a", b"", properties=Properties(topic_alias=65_535)),
    ),
    WireCase(
        "publish-5-all-properties",
        V5,
        CLIENT,
        frame(
            0x34,
            b"\0\x01a\0\x07",
            block(
                b"\x01\x00\x02\0\0\0\x3c\x03\0\x01t\x08\0\x01r\x09\0\0\x0b\x01\x0b\xff\xff\xff\x7f",
                b"\x23\0\x01\x26\0\x01k\0\x01v\x26\0\0\0\0",
            ),
            b"\xff\xfe",
        ),
        Publish(
            "a",
            b"\xff\xfe",
            2,
            7,
            properties=Properties(
                payload_format_indicator=0,
                message_expiry_interval=60,
                content_type="t",
                response_topic="r",
                correlation_data=b"",
                subscription_identifiers=(1, 268_435_455),
                topic_alias=1,
                user_properties=(("k", "v"), ("", "")),
            ),
        ),
    ),
    WireCase(
        "publish-5-long-property-block",
        V5,
        SERVER,
        b"\x30\x8c\x01\0\x01a\x85\x01\x09\0\x82" + b"d" * 130 + b"hi",
        Publish("a", b"hi", properties=Properties(correlation_data=b"d" * 130)),
    ),
)

ACKNOWLEDGEMENT_CASES: tuple[WireCase, ...] = (
    *of_all("puback", SERVER, b"\x40\x02\0\x01", Puback(1)),
    *of_all("pubrec", CLIENT, b"\x50\x02\xff\xff", Pubrec(65_535)),
    *of_all("pubrel", SERVER, b"\x62\x02\x01\0", Pubrel(256)),
    *of_all("pubcomp", CLIENT, b"\x70\x02\0\x01", Pubcomp(1)),
    WireCase("pubrel-31-dup", V31, SERVER, b"\x6a\x02\0\x01", Pubrel(1), canonical=False),
    WireCase("puback-5-reason", V5, SERVER, b"\x40\x03\0\x01\x10", Puback(1, 0x10)),
    WireCase("puback-5-said-success", V5, SERVER, b"\x40\x03\0\x01\0", Puback(1), canonical=False),
    WireCase("puback-5-empty-block", V5, SERVER, b"\x40\x04\0\x01\x97\0", Puback(1, 0x97), canonical=False),
    WireCase(
        "puback-5-properties",
        V5,
        CLIENT,
        frame(0x40, b"\0\x01\x87\x0b\x1f\0\x01w\x26\0\x01k\0\x01v"),
        Puback(1, 0x87, Properties(reason_string="w", user_properties=(("k", "v"),))),
    ),
    WireCase(
        "pubrec-5-properties",
        V5,
        CLIENT,
        frame(0x50, b"\0\x01\0\x04\x1f\0\x01w"),
        Pubrec(1, 0, Properties(reason_string="w")),
    ),
    WireCase("pubrel-5-reason", V5, SERVER, b"\x62\x03\0\x01\x92", Pubrel(1, 0x92)),
    WireCase(
        "pubcomp-5-properties",
        V5,
        SERVER,
        frame(0x70, b"\0\x01\x92\x04\x1f\0\x01w"),
        Pubcomp(1, 0x92, Properties(reason_string="w")),
    ),
)

SUBSCRIBE_CASES: tuple[WireCase, ...] = (
    *of_3(
        "subscribe",
        SERVER,
        frame(0x82, b"\0\x0a\0\x03a/#\x00\0\x03+/b\x01\0\x01#\x02"),
        Subscribe(10, (Subscription("a/#", 0), Subscription("+/b", 1), Subscription("#", 2))),
    ),
    WireCase(
        "subscribe-31-dup",
        V31,
        SERVER,
        frame(0x8A, b"\0\x0a\0\x01a\x01"),
        Subscribe(10, (Subscription("a", 1),)),
        canonical=False,
    ),
    WireCase(
        "subscribe-5-options",
        V5,
        SERVER,
        frame(0x82, b"\0\x0a\0\0\x01a\x2e\0\x01b\x11\0\x0a$share/g/+\x08"),
        Subscribe(
            10,
            (
                Subscription("a", 2, True, True, 2),
                Subscription("b", 1, False, False, 1),
                Subscription("$share/g/+", 0, False, True, 0),
            ),
        ),
    ),
    WireCase(
        "subscribe-5-properties",
        V5,
        SERVER,
        frame(0x82, b"\0\x0a\x0a\x0b\x80\x01\x26\0\x01k\0\x01v\0\x01a\x00"),
        Subscribe(
            10,
            (Subscription("a", 0),),
            Properties(subscription_identifiers=(128,), user_properties=(("k", "v"),)),
        ),
    ),
    *of_3("suback", CLIENT, b"\x90\x06\0\x0a\0\x01\x02\x80", Suback(10, (0, 1, 2, 0x80))),
    WireCase("suback-5", V5, CLIENT, b"\x90\x06\0\x0a\0\x01\x8f\xa2", Suback(10, (1, 0x8F, 0xA2))),
    WireCase(
        "suback-5-properties",
        V5,
        CLIENT,
        frame(0x90, b"\0\x0a\x04\x1f\0\x01w\x80"),
        Suback(10, (0x80,), Properties(reason_string="w")),
    ),
    *of_3("unsubscribe", SERVER, frame(0xA2, b"\0\x0a\0\x01a\0\x01#"), Unsubscribe(10, ("a", "#"))),
    WireCase(
        "unsubscribe-5-properties",
        V5,
        SERVER,
        frame(0xA2, b"\0\x0a\x07\x26\0\x01k\0\x01v\0\x01a"),
        Unsubscribe(10, ("a",), Properties(user_properties=(("k", "v"),))),
    ),
    *of_3("unsuback", CLIENT, b"\xb0\x02\0\x0a", Unsuback(10)),
    WireCase("unsuback-5", V5, CLIENT, b"\xb0\x05\0\x0a\0\0\x11", Unsuback(10, (0, 0x11))),
)

OTHER_CASES: tuple[WireCase, ...] = (
    *of_all("pingreq", SERVER, b"\xc0\0", Pingreq()),
    *of_all("pingresp", CLIENT, b"\xd0\0", Pingresp()),
    *of_all("disconnect", SERVER, b"\xe0\0", Disconnect()),
    WireCase("disconnect-5-with-will", V5, SERVER, b"\xe0\x02\x04\0", Disconnect(4)),
    WireCase("disconnect-5-with-will-short", V5, SERVER, b"\xe0\x01\x04", Disconnect(4), canonical=False),
    WireCase("disconnect-5-said-normal", V5, SERVER, b"\xe0\x02\0\0", Disconnect(), canonical=False),
    WireCase("disconnect-5-of-server", V5, CLIENT, b"\xe0\x02\x8e\0", Disconnect(0x8E)),
    WireCase("disconnect-5-of-server-short", V5, CLIENT, b"\xe0\x01\x8e", Disconnect(0x8E), canonical=False),
    WireCase(
        "disconnect-5-properties",
        V5,
        SERVER,
        frame(0xE0, b"\0\x10\x11\0\0\0\0\x1f\0\x01w\x26\0\x01k\0\x01v"),
        Disconnect(
            0,
            Properties(session_expiry_interval=0, reason_string="w", user_properties=(("k", "v"),)),
        ),
    ),
    WireCase(
        "disconnect-5-moved",
        V5,
        CLIENT,
        frame(0xE0, b"\x9d\x04\x1c\0\x01s"),
        Disconnect(0x9D, Properties(server_reference="s")),
    ),
    WireCase(
        "auth-5-continue",
        V5,
        SERVER,
        frame(0xF0, b"\x18\x09\x15\0\x01m\x16\0\x02\0\1"),
        Auth(0x18, Properties(authentication_method="m", authentication_data=b"\0\1")),
    ),
    WireCase("auth-5-success", V5, CLIENT, b"\xf0\0", Auth(0)),
)

CASES: tuple[WireCase, ...] = (
    CONNECT_CASES + CONNACK_CASES + PUBLISH_CASES + ACKNOWLEDGEMENT_CASES + SUBSCRIBE_CASES + OTHER_CASES
)
