"""Wire errors as data: bytes that must be refused, with which reason code, and the clause that they break."""

from __future__ import annotations

from tests.conformance.wire_cases import (
    CLIENT,
    FILTER,
    MALFORMED,
    PROTOCOL,
    SERVER,
    TOPIC,
    V5,
    V31,
    V311,
    VERSION,
    WireError,
    frame,
)

from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion, Role

PROPERTIES = "MQTT 5.0, 2.2.2.2"


def opening(
    name: str, version: ProtocolVersion, data: bytes, error: ReasonCode, clause: str, *, reader: Role = SERVER
) -> WireError:
    """What is wrong as the first packet of a connection."""
    return WireError(name, version, reader, data, error, clause, opening=True)


def of_all(name: str, reader: Role, data: bytes, error: ReasonCode, clause: str) -> list[WireError]:
    """What is wrong in the same way in all versions."""
    return [WireError(f"{name}-{v.name}", v, reader, data, error, clause) for v in ProtocolVersion]


def connect(flags: bytes, *parts: bytes, head: bytes = b"\0\x04MQTT\x05") -> bytes:
    """A CONNECT with keep-alive 10."""
    return frame(0x10, head, flags, b"\0\x0a", *parts)


V311_HEAD = b"\0\x04MQTT\x04"

FIXED_HEADER_ERRORS: tuple[WireError, ...] = (
    *of_all("type-0", SERVER, b"\x00\0", MALFORMED, "MQTT 5.0, 2.1.2"),
    WireError("auth-31", V31, SERVER, b"\xf0\0", MALFORMED, "MQTT 5.0, 2.1.2"),
    WireError("auth-311", V311, SERVER, b"\xf0\0", MALFORMED, "MQTT 5.0, 2.1.2"),
    *of_all("length-of-5-bytes", SERVER, b"\x30\xff\xff\xff\xff\x7f", MALFORMED, "MQTT-1.5.5-1"),
    WireError("length-padded", V5, SERVER, b"\xc0\x80\0", MALFORMED, "MQTT-1.5.5-1"),
    WireError("length-padded-publish", V5, SERVER, b"\x30\x86\0\0\x01a\0hi", MALFORMED, "MQTT-1.5.5-1"),
    WireError("length-padded-to-4", V5, SERVER, b"\x30\x86\x80\x80\0\0\x01a\0hi", MALFORMED, "MQTT-1.5.5-1"),
    *of_all("puback-flags", SERVER, b"\x41\x02\0\x01", MALFORMED, "MQTT-2.1.3-1"),
    *of_all("pubrec-flags", SERVER, b"\x52\x02\0\x01", MALFORMED, "MQTT-2.1.3-1"),
    *of_all("pubrel-flags", SERVER, b"\x60\x02\0\x01", MALFORMED, "MQTT-3.6.1-1"),
    WireError("pubrel-dup-311", V311, SERVER, b"\x6a\x02\0\x01", MALFORMED, "MQTT-3.6.1-1"),
    *of_all("pubcomp-flags", SERVER, b"\x78\x02\0\x01", MALFORMED, "MQTT-2.1.3-1"),
    *of_all("subscribe-flags", SERVER, frame(0x80, b"\0\x01\0\0\x01a\0"), MALFORMED, "MQTT-3.8.1-1"),
    *of_all("suback-flags", CLIENT, b"\x91\x03\0\x01\0", MALFORMED, "MQTT-2.1.3-1"),
    *of_all("unsubscribe-flags", SERVER, frame(0xA0, b"\0\x01\0\0\x01a"), MALFORMED, "MQTT-3.10.1-1"),
    *of_all("unsuback-flags", CLIENT, b"\xb4\x02\0\x01", MALFORMED, "MQTT-2.1.3-1"),
    *of_all("pingreq-flags", SERVER, b"\xc1\0", MALFORMED, "MQTT-2.1.3-1"),
    *of_all("pingresp-flags", CLIENT, b"\xd8\0", MALFORMED, "MQTT-2.1.3-1"),
    *of_all("disconnect-flags", SERVER, b"\xe2\0", MALFORMED, "MQTT-3.14.1-1"),
    WireError("auth-flags", V5, SERVER, b"\xf1\0", MALFORMED, "MQTT-3.15.1-1"),
    *of_all("pingreq-body", SERVER, b"\xc0\x01\0", MALFORMED, "MQTT-4.13.1-1"),
    *of_all("pingresp-body", CLIENT, b"\xd0\x01\0", MALFORMED, "MQTT-4.13.1-1"),
)

ORDER_ERRORS: tuple[WireError, ...] = (
    opening("first-publish", V311, b"\x30\x03\0\x01a", PROTOCOL, "MQTT-3.1.0-1"),
    opening("first-pingreq", V5, b"\xc0\0", PROTOCOL, "MQTT-3.1.0-1"),
    opening("first-auth", V5, b"\xf0\0", PROTOCOL, "MQTT-3.1.0-1"),
    opening("first-http", V311, b"GET / HTTP/1.1\r\n", PROTOCOL, "MQTT-3.1.0-1"),
    opening("first-tls", V311, b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", MALFORMED, "MQTT-2.1.3-1"),
    opening("first-of-server-suback", V5, b"\x90\x04\0\x01\0\0", PROTOCOL, "MQTT-3.2.0-1", reader=CLIENT),
    *of_all("second-connect", SERVER, b"\x10\x0c\0\x04MQTT\x04\x02\0\0\0\0", PROTOCOL, "MQTT-3.1.0-2"),
    *of_all("second-connack", CLIENT, b"\x20\x02\0\0", PROTOCOL, "MQTT-3.1.0-2"),
    *of_all("connack-to-server", SERVER, b"\x20\x02\0\0", PROTOCOL, "MQTT 5.0, 2.1.2"),
    *of_all("suback-to-server", SERVER, b"\x90\x03\0\x01\0", PROTOCOL, "MQTT 5.0, 2.1.2"),
    *of_all("unsuback-to-server", SERVER, b"\xb0\x02\0\x01", PROTOCOL, "MQTT 5.0, 2.1.2"),
    *of_all("pingresp-to-server", SERVER, b"\xd0\0", PROTOCOL, "MQTT 5.0, 2.1.2"),
    *of_all("connect-to-client", CLIENT, b"\x10\x0c\0\x04MQTT\x04\x02\0\0\0\0", PROTOCOL, "MQTT 5.0, 2.1.2"),
    *of_all("subscribe-to-client", CLIENT, frame(0x82, b"\0\x01\0\0\x01a\0"), PROTOCOL, "MQTT 5.0, 2.1.2"),
    *of_all("unsubscribe-to-client", CLIENT, frame(0xA2, b"\0\x01\0\0\x01a"), PROTOCOL, "MQTT 5.0, 2.1.2"),
    *of_all("pingreq-to-client", CLIENT, b"\xc0\0", PROTOCOL, "MQTT 5.0, 2.1.2"),
    WireError("disconnect-to-client-311", V311, CLIENT, b"\xe0\0", PROTOCOL, "MQTT 3.1.1, 3.14"),
)

CONNECT_ERRORS: tuple[WireError, ...] = (
    opening("connect-flags", V5, b"\x11\x0d\0\x04MQTT\x05\x02\0\0\0\0\0", MALFORMED, "MQTT-2.1.3-1"),
    opening("connect-flags-311", V311, b"\x11\x0c\0\x04MQTT\x04\x02\0\0\0\0", MALFORMED, "MQTT-2.1.3-1"),
    opening("connect-empty", V5, b"\x10\0", MALFORMED, "MQTT-4.13.1-1"),
    opening(
        "connect-wrong-name", V5, connect(b"\x02", b"\0\0\0", head=b"\0\x04MQTX\x05"), VERSION, "MQTT-3.1.2-2"
    ),
    opening(
        "connect-level-6", V5, connect(b"\x02", b"\0\0\0", head=b"\0\x04MQTT\x06"), VERSION, "MQTT-3.1.2-2"
    ),
    opening(
        "connect-level-3", V311, connect(b"\x02", b"\0\0", head=b"\0\x04MQTT\x03"), VERSION, "MQTT-3.1.2-2"
    ),
    opening(
        "connect-bridge", V311, connect(b"\x02", b"\0\0", head=b"\0\x04MQTT\x84"), VERSION, "MQTT-3.1.2-2"
    ),
    opening(
        "connect-old-name-new", V31, connect(b"\2", b"\0\0", head=b"\0\x06MQIsdp\4"), VERSION, "MQTT-3.1.2-2"
    ),
    opening(
        "connect-name-not-utf8", V5, connect(b"\x02", head=b"\0\x04MQT\xff\x05"), MALFORMED, "MQTT-1.5.4-1"
    ),
    opening(
        "connect-reserved-flag", V311, connect(b"\x03", b"\0\0", head=V311_HEAD), MALFORMED, "MQTT-3.1.2-3"
    ),
    opening("connect-reserved-flag-5", V5, connect(b"\x03", b"\0\0\0"), MALFORMED, "MQTT-3.1.2-3"),
    opening("connect-will-qos-3", V5, connect(b"\x1e", b"\0\0\0\0\0\1w\0\0"), MALFORMED, "MQTT-3.1.2-12"),
    opening("connect-qos-without-will", V5, connect(b"\x0a", b"\0\0\0"), MALFORMED, "MQTT-3.1.2-11"),
    opening("connect-retain-without-will", V5, connect(b"\x22", b"\0\0\0"), MALFORMED, "MQTT-3.1.2-13"),
    opening(
        "connect-password-without-user",
        V311,
        connect(b"\x42", b"\0\x01c\0\x01p", head=V311_HEAD),
        MALFORMED,
        "MQTT-3.1.2-22",
    ),
    opening("connect-no-user", V311, connect(b"\x82", b"\0\1c", head=V311_HEAD), MALFORMED, "MQTT-4.13.1-1"),
    opening("connect-too-long", V5, connect(b"\x02", b"\0\0\1cx"), MALFORMED, "MQTT-4.13.1-1"),
    opening("connect-no-id", V5, connect(b"\x02", b"\0"), MALFORMED, "MQTT-4.13.1-1"),
    opening("connect-id-with-nul", V5, connect(b"\x02", b"\0\0\1\0"), MALFORMED, "MQTT-1.5.4-2"),
    opening(
        "connect-id-with-surrogate", V5, connect(b"\x02", b"\0\0\3\xed\xa0\x80"), MALFORMED, "MQTT-1.5.4-1"
    ),
    opening("connect-id-overlong-utf8", V5, connect(b"\x02", b"\0\0\2\xc0\x80"), MALFORMED, "MQTT-1.5.4-1"),
    opening(
        "connect-will-topic-wildcard", V5, connect(b"\x06", b"\0\0\0\0\0\1#\0\0"), MALFORMED, "MQTT-3.3.2-2"
    ),
    opening("connect-will-topic-empty", V5, connect(b"\x06", b"\0\0\0\0\0\0\0\0"), MALFORMED, "MQTT-4.7.3-1"),
    opening("connect-padded-length", V5, b"\x10\x8d\0\0\x04MQTT\5\2\0\0\0\0\0", MALFORMED, "MQTT-1.5.5-1"),
    opening("connect-receive-max-0", V5, connect(b"\2", b"\3\x21\0\0\0\0"), PROTOCOL, "MQTT 5.0, 3.1.2.11.3"),
    opening(
        "connect-packet-max-0", V5, connect(b"\2", b"\5\x27\0\0\0\0\0\0"), PROTOCOL, "MQTT 5.0, 3.1.2.11.4"
    ),
    opening("connect-problem-info-2", V5, connect(b"\2", b"\2\x17\2\0\0"), PROTOCOL, "MQTT 5.0, 3.1.2.11.7"),
    opening("connect-response-info-2", V5, connect(b"\2", b"\2\x19\2\0\0"), PROTOCOL, "MQTT 5.0, 3.1.2.11.6"),
    opening(
        "connect-auth-data-alone", V5, connect(b"\2", b"\4\x16\0\1d\0\0"), PROTOCOL, "MQTT 5.0, 3.1.2.11.10"
    ),
    opening("connect-property-twice", V5, connect(b"\2", b"\6\x21\0\1\x21\0\1\0\0"), PROTOCOL, PROPERTIES),
    opening("connect-foreign-property", V5, connect(b"\2", b"\3\x23\0\1\0\0"), MALFORMED, PROPERTIES),
    opening("connect-will-property", V5, connect(b"\2", b"\5\x18\0\0\0\1\0\0"), MALFORMED, PROPERTIES),
    opening("will-connect-property", V5, connect(b"\6", b"\0\0\0\3\x21\0\1\0\1w\0\0"), MALFORMED, PROPERTIES),
    opening("connect-unknown-property", V5, connect(b"\2", b"\2\x7e\0\0\0"), MALFORMED, PROPERTIES),
    opening(
        "connect-properties-past-end", V5, connect(b"\2", b"\x09\x21\0\1\0\0"), MALFORMED, "MQTT-2.2.2-1"
    ),
    opening("connect-property-cut", V5, connect(b"\2", b"\2\x21\0\0\0"), MALFORMED, "MQTT-4.13.1-1"),
    opening("connect-block-length-padded", V5, connect(b"\2", b"\x80\0\0\0"), MALFORMED, "MQTT-1.5.5-1"),
    opening(
        "connect-block-length-long", V5, connect(b"\2", b"\x80\x80\x80\x80\1"), MALFORMED, "MQTT-1.5.5-1"
    ),
    opening("connack-flags", V5, b"\x20\3\2\0\0", MALFORMED, "MQTT-3.2.2-1", reader=CLIENT),
    opening("connack-311-flags", V311, b"\x20\2\2\0", MALFORMED, "MQTT-3.2.2-1", reader=CLIENT),
    opening("connack-311-code", V311, b"\x20\2\0\6", MALFORMED, "MQTT 3.1.1, 3.2.2.3", reader=CLIENT),
    opening("connack-311-long", V311, b"\x20\3\0\0\0", MALFORMED, "MQTT-4.13.1-1", reader=CLIENT),
    opening("connack-code", V5, b"\x20\3\0\1\0", PROTOCOL, "MQTT-3.2.2-8", reader=CLIENT),
    opening("connack-present-refused", V5, b"\x20\3\1\x87\0", PROTOCOL, "MQTT-3.2.2-6", reader=CLIENT),
    opening("connack-qos-2", V5, b"\x20\5\0\0\2\x24\2", PROTOCOL, "MQTT 5.0, 3.2.2.3.4", reader=CLIENT),
    opening("connack-without-block", V5, b"\x20\2\0\0", MALFORMED, "MQTT-4.13.1-1", reader=CLIENT),
)

PUBLISH_ERRORS: tuple[WireError, ...] = (
    *of_all("publish-qos-3", SERVER, b"\x36\x07\0\1a\0\1\0x", MALFORMED, "MQTT-3.3.1-4"),
    *of_all("publish-qos-0-dup", SERVER, b"\x38\4\0\1a\0", MALFORMED, "MQTT-3.3.1-2"),
    *of_all("publish-empty", SERVER, b"\x30\0", MALFORMED, "MQTT-4.13.1-1"),
    *of_all("publish-one-byte", SERVER, b"\x30\1\0", MALFORMED, "MQTT-4.13.1-1"),
    *of_all("publish-topic-past-end", SERVER, b"\x30\4\0\5ab", MALFORMED, "MQTT-4.13.1-1"),
    *of_all("publish-no-packet-id", SERVER, b"\x32\4\0\1a\0", MALFORMED, "MQTT-4.13.1-1"),
    *of_all("publish-packet-id-0", SERVER, b"\x32\6\0\1a\0\0\0", PROTOCOL, "MQTT-2.2.1-3"),
    *of_all("publish-topic-plus", SERVER, b"\x30\6\0\3a/+\0", MALFORMED, "MQTT-3.3.2-2"),
    *of_all("publish-topic-hash", SERVER, b"\x30\4\0\1#\0", MALFORMED, "MQTT-3.3.2-2"),
    *of_all("publish-topic-nul", SERVER, b"\x30\6\0\3a\0b\0", MALFORMED, "MQTT-1.5.4-2"),
    *of_all("publish-topic-not-utf8", SERVER, b"\x30\5\0\2\xc3\x28\0", MALFORMED, "MQTT-1.5.4-1"),
    *of_all("publish-topic-surrogate", SERVER, b"\x30\6\0\3\xed\xbf\xbf\0", MALFORMED, "MQTT-1.5.4-1"),
    *of_all("publish-topic-empty", SERVER, b"\x30\3\0\0\0", PROTOCOL, "MQTT-4.7.3-1"),
    WireError("publish-no-block", V5, SERVER, b"\x30\3\0\1a", MALFORMED, "MQTT-4.13.1-1"),
    WireError("publish-block-past-end", V5, SERVER, b"\x30\6\0\1a\3\x23\0", MALFORMED, "MQTT-2.2.2-1"),
    WireError("publish-block-cut", V5, SERVER, b"\x30\6\0\1a\2\x23\0", MALFORMED, "MQTT-4.13.1-1"),
    WireError("publish-block-padded", V5, SERVER, b"\x30\5\0\1a\x80\0", MALFORMED, "MQTT-1.5.5-1"),
    WireError("publish-property-id-padded", V5, SERVER, b"\x30\7\0\1a\3\x81\0\0", MALFORMED, "MQTT-1.5.5-1"),
    WireError(
        "publish-alias-0",
        V5,
        SERVER,
        b"\x30\7\0\1a\3\x23\0\0",
        ReasonCode.TOPIC_ALIAS_INVALID,
        "MQTT-3.3.2-8",
    ),
    WireError("publish-alias-twice", V5, SERVER, b"\x30\x0a\0\1a\6\x23\0\1\x23\0\1", PROTOCOL, PROPERTIES),
    WireError("publish-properties-no-alias", V5, SERVER, b"\x30\5\0\0\2\1\0", PROTOCOL, "MQTT-4.7.3-1"),
    WireError("publish-format-2", V5, SERVER, b"\x30\6\0\1a\2\1\2", PROTOCOL, "MQTT-3.3.2-4"),
    WireError("publish-response-plus", V5, SERVER, b"\x30\x08\0\1a\4\x08\0\1+", TOPIC, "MQTT-3.3.2-14"),
    WireError("publish-response-empty", V5, SERVER, b"\x30\7\0\1a\3\x08\0\0", TOPIC, "MQTT-4.7.3-1"),
    WireError("publish-id-of-client", V5, SERVER, b"\x30\6\0\1a\2\x0b\1", PROTOCOL, "MQTT-3.3.4-6"),
    WireError("publish-id-0", V5, CLIENT, b"\x30\6\0\1a\2\x0b\0", PROTOCOL, "MQTT 5.0, 3.8.2.1.2"),
    WireError("publish-foreign-property", V5, SERVER, b"\x30\7\0\1a\3\x21\0\1", MALFORMED, PROPERTIES),
    WireError("publish-user-nul", V5, SERVER, b"\x30\x0a\0\1a\6\x26\0\1\0\0\0", MALFORMED, "MQTT-1.5.4-2"),
    WireError("publish-content-utf8", V5, SERVER, b"\x30\x08\0\1a\4\3\0\1\xff", MALFORMED, "MQTT-1.5.4-1"),
)

ACKNOWLEDGEMENT_ERRORS: tuple[WireError, ...] = tuple(
    error
    for first, name, clause in (
        (0x40, "puback", "MQTT-3.4.2-1"),
        (0x50, "pubrec", "MQTT-3.5.2-1"),
        (0x62, "pubrel", "MQTT-3.6.2-1"),
        (0x70, "pubcomp", "MQTT-3.7.2-1"),
    )
    for error in (
        *of_all(f"{name}-id-0", SERVER, bytes((first, 2, 0, 0)), PROTOCOL, "MQTT-2.2.1-3"),
        *of_all(f"{name}-empty", SERVER, bytes((first, 0)), MALFORMED, "MQTT-4.13.1-1"),
        *of_all(f"{name}-one-byte", SERVER, bytes((first, 1, 1)), MALFORMED, "MQTT-4.13.1-1"),
        WireError(f"{name}-311-long", V311, SERVER, bytes((first, 3, 0, 1, 0)), MALFORMED, "MQTT-4.13.1-1"),
        WireError(f"{name}-reason", V5, SERVER, bytes((first, 3, 0, 1, 0x8E)), PROTOCOL, clause),
        WireError(
            f"{name}-foreign", V5, SERVER, bytes((first, 7, 0, 1, 0, 3, 0x21, 0, 1)), MALFORMED, PROPERTIES
        ),
        WireError(f"{name}-long", V5, SERVER, bytes((first, 5, 0, 1, 0, 0, 9)), MALFORMED, "MQTT-4.13.1-1"),
    )
)

SUBSCRIBE_ERRORS: tuple[WireError, ...] = (
    WireError("subscribe-empty-311", V311, SERVER, b"\x82\2\0\1", PROTOCOL, "MQTT-3.8.3-2"),
    WireError("subscribe-empty", V5, SERVER, b"\x82\3\0\1\0", PROTOCOL, "MQTT-3.8.3-2"),
    *of_all("subscribe-id-0", SERVER, frame(0x82, b"\0\0\0\1a\0"), PROTOCOL, "MQTT-2.2.1-3"),
    WireError("subscribe-no-options", V311, SERVER, frame(0x82, b"\0\1\0\1a"), MALFORMED, "MQTT-4.13.1-1"),
    WireError("subscribe-empty-filter", V311, SERVER, frame(0x82, b"\0\1\0\0\0"), MALFORMED, "MQTT-4.7.3-1"),
    WireError(
        "subscribe-empty-filter-5", V5, SERVER, frame(0x82, b"\0\1\0\0\0\0"), MALFORMED, "MQTT-4.7.3-1"
    ),
    WireError("unsubscribe-empty-filter", V5, SERVER, frame(0xA2, b"\0\1\0\0\0"), MALFORMED, "MQTT-4.7.3-1"),
    WireError("subscribe-hash-inside", V311, SERVER, frame(0x82, b"\0\1\0\3#/a\0"), FILTER, "MQTT-4.7.1-1"),
    WireError("subscribe-hash-in-level", V5, SERVER, frame(0x82, b"\0\1\0\0\2a#\0"), FILTER, "MQTT-4.7.1-1"),
    WireError("subscribe-plus-in-level", V5, SERVER, frame(0x82, b"\0\1\0\0\2a+\0"), FILTER, "MQTT-4.7.1-2"),
    WireError("subscribe-nul", V5, SERVER, frame(0x82, b"\0\1\0\0\1\0\0"), MALFORMED, "MQTT-1.5.4-2"),
    WireError(
        "subscribe-qos-3-311", V311, SERVER, frame(0x82, b"\0\1\0\1a\3"), PROTOCOL, "MQTT 5.0, 3.8.3.1"
    ),
    WireError("subscribe-qos-3", V5, SERVER, frame(0x82, b"\0\1\0\0\1a\3"), PROTOCOL, "MQTT 5.0, 3.8.3.1"),
    WireError("subscribe-options-311", V311, SERVER, frame(0x82, b"\0\1\0\1a\4"), MALFORMED, "MQTT-3.8.3-5"),
    WireError("subscribe-options", V5, SERVER, frame(0x82, b"\0\1\0\0\1a\x40"), MALFORMED, "MQTT-3.8.3-5"),
    WireError(
        "subscribe-handling-3", V5, SERVER, frame(0x82, b"\0\1\0\0\1a\x30"), PROTOCOL, "MQTT 5.0, 3.8.3.1"
    ),
    WireError(
        "subscribe-shared-no-local",
        V5,
        SERVER,
        frame(0x82, b"\0\1\0\0\x0a$share/g/t\4"),
        PROTOCOL,
        "MQTT-3.8.3-4",
    ),
    WireError(
        "subscribe-share-empty", V5, SERVER, frame(0x82, b"\0\1\0\0\x09$share//t\0"), FILTER, "MQTT-4.8.2-1"
    ),
    WireError(
        "subscribe-share-alone", V5, SERVER, frame(0x82, b"\0\1\0\0\x08$share/g\0"), FILTER, "MQTT-4.8.2-2"
    ),
    WireError(
        "subscribe-share-plus", V5, SERVER, frame(0x82, b"\0\1\0\0\x0a$share/+/t\0"), FILTER, "MQTT-4.8.2-2"
    ),
    WireError(
        "subscribe-no-filter", V5, SERVER, frame(0x82, b"\0\1\0\0\x09$share/g/\0"), FILTER, "MQTT-4.8.2-2"
    ),
    WireError(
        "subscribe-identifier-0",
        V5,
        SERVER,
        frame(0x82, b"\0\1\2\x0b\0\0\1a\0"),
        PROTOCOL,
        "MQTT 5.0, 3.8.2.1.2",
    ),
    WireError(
        "subscribe-two-ids", V5, SERVER, frame(0x82, b"\0\1\4\x0b\1\x0b\2\0\1a\0"), PROTOCOL, PROPERTIES
    ),
    WireError("unsubscribe-empty", V5, SERVER, b"\xa2\3\0\1\0", PROTOCOL, "MQTT-3.10.3-2"),
    WireError("unsubscribe-filter", V5, SERVER, frame(0xA2, b"\0\1\0\0\2+a"), FILTER, "MQTT-4.7.1-2"),
    WireError("unsubscribe-cut", V311, SERVER, frame(0xA2, b"\0\1\0\2a"), MALFORMED, "MQTT-4.13.1-1"),
    WireError("unsubscribe-id-0", V311, SERVER, frame(0xA2, b"\0\0\0\1a"), PROTOCOL, "MQTT-2.2.1-3"),
    WireError("suback-empty", V311, CLIENT, b"\x90\2\0\1", PROTOCOL, "MQTT-3.9.3-2"),
    WireError("suback-311-code", V311, CLIENT, b"\x90\3\0\1\x8f", PROTOCOL, "MQTT-3.9.3-2"),
    WireError("suback-code", V5, CLIENT, b"\x90\4\0\1\0\3", PROTOCOL, "MQTT-3.9.3-2"),
    WireError("unsuback-311-long", V311, CLIENT, b"\xb0\3\0\1\0", MALFORMED, "MQTT-4.13.1-1"),
    WireError("unsuback-code", V5, CLIENT, b"\xb0\4\0\1\0\1", PROTOCOL, "MQTT-3.11.3-2"),
    WireError("unsuback-empty", V5, CLIENT, b"\xb0\3\0\1\0", PROTOCOL, "MQTT-3.11.3-2"),
)

OTHER_ERRORS: tuple[WireError, ...] = (
    WireError("disconnect-311-body", V311, SERVER, b"\xe0\1\0", MALFORMED, "MQTT-4.13.1-1"),
    WireError("disconnect-reason", V5, SERVER, b"\xe0\1\1", PROTOCOL, "MQTT-3.14.2-1"),
    WireError("disconnect-reason-of-server", V5, SERVER, b"\xe0\1\x8e", PROTOCOL, "MQTT-3.14.2-1"),
    WireError("disconnect-reason-of-client", V5, CLIENT, b"\xe0\1\4", PROTOCOL, "MQTT-3.14.2-1"),
    WireError("disconnect-expiry", V5, CLIENT, b"\xe0\7\0\5\x11\0\0\0\1", PROTOCOL, "MQTT-3.14.2-2"),
    WireError("disconnect-long", V5, SERVER, b"\xe0\3\0\0\0", MALFORMED, "MQTT-4.13.1-1"),
    WireError("auth-reason", V5, SERVER, b"\xf0\1\1", PROTOCOL, "MQTT-3.15.2-1"),
    WireError("auth-success-of-client", V5, SERVER, b"\xf0\0", PROTOCOL, "MQTT-3.15.2-1"),
    WireError("auth-again-of-server", V5, CLIENT, b"\xf0\1\x19", PROTOCOL, "MQTT-3.15.2-1"),
    WireError("auth-no-method", V5, SERVER, b"\xf0\1\x18", PROTOCOL, "MQTT 5.0, 3.15.2.2.2"),
    WireError("auth-data-alone", V5, CLIENT, b"\xf0\6\0\4\x16\0\1d", PROTOCOL, "MQTT 5.0, 3.1.2.11.10"),
)

ERRORS: tuple[WireError, ...] = (
    FIXED_HEADER_ERRORS
    + ORDER_ERRORS
    + CONNECT_ERRORS
    + PUBLISH_ERRORS
    + ACKNOWLEDGEMENT_ERRORS
    + SUBSCRIBE_ERRORS
    + OTHER_ERRORS
)
