"""The hot helpers of the encoder, what 3.x leaves out, and what is refused as our own fault."""

from __future__ import annotations

from itertools import product

import pytest

from embermq.mqtt.wire import encoder
from embermq.mqtt.wire.encoder import encode, publish_frame, with_dup
from embermq.mqtt.wire.errors import EncodeError
from embermq.mqtt.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
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
from embermq.mqtt.wire.reason_codes import ConnectReturnCode, ReasonCode, to_connect_return_code
from embermq.mqtt.wire.version import ProtocolVersion

V31, V311, V5 = ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5


SIZES = (0, 100, 119, 120, 121, 122, 127, 16_370, 16_378, 16_380, 16_384, 70_000)
"""Of payloads: around the steps of a packet's length, and of what is joined to its head."""


@pytest.mark.parametrize("version", list(ProtocolVersion))
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_frame_is_encode_in_parts(version: ProtocolVersion, qos: int) -> None:
    for retain, size in product((False, True), SIZES):
        properties = Properties(message_expiry_interval=7) if size % 2 else None
        packet = Publish("a/é", b"x" * size, qos, 513 if qos else 0, retain, False, properties)
        block = encode_properties(properties) if version is V5 else b""
        head, block_out, payload = publish_frame(
            packet.topic, packet.payload, qos=qos, retain=retain, version=version, properties=block
        )
        packet_id = b"\x02\x01" if qos else b""
        assert head + packet_id + block_out + payload == encode(packet, version)
        if qos:
            repeated = Publish(packet.topic, packet.payload, qos, 513, retain, True, properties)
            assert with_dup(head) + packet_id + block_out + payload == encode(repeated, version)


def test_publish_frame_takes_no_block_for_the_empty_block() -> None:
    head, block_out, payload = publish_frame("a", b"x", qos=0, retain=False, version=V5, properties=b"")
    assert head + block_out + payload == b"\x30\x05\0\x01a\0x"


def test_publish_frame_refuses_a_topic_that_is_too_long() -> None:
    with pytest.raises(EncodeError, match="65536 bytes"):
        publish_frame("x" * 65_536, b"", qos=0, retain=False, version=V311, properties=b"")


@pytest.mark.parametrize("version", list(ProtocolVersion))
@pytest.mark.parametrize("packet_id", [1, 255, 256, 65_535])
def test_short_acknowledgements(version: ProtocolVersion, packet_id: int) -> None:
    assert encoder.puback(packet_id) == encode(Puback(packet_id), version)
    assert encoder.pubrec(packet_id) == encode(Pubrec(packet_id), version)
    assert encoder.pubrel(packet_id) == encode(Pubrel(packet_id), version)
    assert encoder.pubcomp(packet_id) == encode(Pubcomp(packet_id), version)


EXPLAINED = Properties(reason_string="why")


@pytest.mark.parametrize("version", [V31, V311])
@pytest.mark.parametrize(
    ("packet", "data"),
    [
        (Connack(False, ReasonCode.BAD_USER_NAME_OR_PASSWORD, EXPLAINED), b"\x20\x02\0\x04"),
        (Connack(False, ReasonCode.SERVER_BUSY), b"\x20\x02\0\x03"),
        (Connack(False, ConnectReturnCode.IDENTIFIER_REJECTED), b"\x20\x02\0\x02"),
        (Puback(1, ReasonCode.QUOTA_EXCEEDED, EXPLAINED), b"\x40\x02\0\x01"),
        (Suback(1, (0, 1, 2, ReasonCode.NOT_AUTHORIZED), EXPLAINED), b"\x90\x06\0\x01\0\x01\x02\x80"),
        (Unsuback(1, (0, 0x11), EXPLAINED), b"\xb0\x02\0\x01"),
        (Disconnect(ReasonCode.SERVER_SHUTTING_DOWN, EXPLAINED), b"\xe0\0"),
        (Publish("a", b"", properties=Properties(topic_alias=1)), b"\x30\x03\0\x01a"),
        (Subscribe(1, (Subscription("a", 1, True, True, 2),)), b"\x82\x06\0\x01\0\x01a\x01"),
    ],
)
def test_what_3_has_no_place_for_is_left_out(version: ProtocolVersion, packet: Packet, data: bytes) -> None:
    assert encode(packet, version) == data


def test_session_present_does_not_exist_in_31() -> None:
    assert encode(Connack(True, 0), V31) == b"\x20\x02\0\0"
    assert encode(Connack(True, 0), V311) == b"\x20\x02\x01\0"


@pytest.mark.parametrize(
    ("packet", "version", "message"),
    [
        (Auth(), V311, "AUTH does not exist"),
        (Connect("c", V311), V5, "CONNECT for"),
        (Connect("c", V311, password=b"p"), V311, "MQTT-3.1.2-22"),
        (Connect("c", V311, keep_alive_s=65_536), V311, "does not fit into 2"),
        (Connect("c\0", V311), V311, "U\\+0000"),
        (Connect("c" * 65_536, V311), V311, "65536 bytes"),
        (Connect("c", V311, will=Will("w", b"", 3)), V311, "QoS 3"),
        (Connect("c", V311, will=Will("#", b"")), V311, "wildcard"),
        (Connect("c", V311, username="u", password=b"x" * 65_536), V311, "65536 bytes"),
        (Connack(True, 0x87), V5, "session is present"),
        (Connack(False, 0x8E), V311, "not allowed in CONNACK"),
        (Publish("a", b"", 1), V311, "packet identifier 0"),
        (Publish("a", b"", 0, 1), V311, "QoS 0 with"),
        (Publish("a", b"", 0, 0, False, True), V311, "QoS 0 with"),
        (Publish("a", b"", 3, 1), V311, "QoS 3"),
        (Publish("", b""), V5, "empty"),
        (Publish("", b"", properties=Properties(topic_alias=1)), V311, "empty"),
        (Publish("a/#", b""), V5, "wildcard"),
        (Publish("\ud800", b""), V5, "surrogate"),
        (Publish("a", b"", properties=Properties(topic_alias=0)), V5, "topic_alias is 0"),
        (Publish("a", b"", properties=Properties(receive_maximum=1)), V5, "not allowed in PUBLISH"),
        (Publish("a", b"", properties=Properties(content_type="\ud800")), V5, "surrogate"),
        (Publish("a", b"", properties=Properties(message_expiry_interval=1 << 32)), V5, "expiry"),
        (Puback(0), V311, "packet identifier 0"),
        (Puback(65_536), V311, "packet identifier 65536"),
        (Subscribe(1, ()), V311, "without a topic filter"),
        (Subscribe(1, (Subscription("a", 3),)), V311, "QoS 3"),
        (Subscribe(1, (Subscription("a/#/b", 1),)), V311, "not the last"),
        (Subscribe(1, (Subscription("a", 1, False, False, 3),)), V5, "retain handling 3"),
        (Subscribe(1, (Subscription("$share/g/a", 1, True),)), V5, "shared"),
        (
            Subscribe(1, (Subscription("a", 1),), Properties(subscription_identifiers=(1, 2))),
            V5,
            "only once",
        ),
        (Suback(1, ()), V5, "without a reason code"),
        (Suback(1, (256,)), V5, "does not fit into 1"),
        (Unsubscribe(1, ()), V5, "without a topic filter"),
        (Unsubscribe(1, ("+a",)), V5, "shares its level"),
        (Unsuback(1), V5, "without a reason code"),
    ],
)
def test_our_own_faults_are_refused(packet: Packet, version: ProtocolVersion, message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        encode(packet, version)


def test_properties_without_a_place_are_not_held_against_one() -> None:
    properties = Properties(topic_alias=1, receive_maximum=1)
    assert encode_properties(properties) == b"\x06\x21\0\x01\x23\0\x01"
    with pytest.raises(EncodeError):
        encode_properties(properties, PropertyPlace.PUBLISH)
    assert encode_properties(None) == encode_properties(Properties()) == b"\0"


def test_return_codes_of_3() -> None:
    assert to_connect_return_code(ReasonCode.SUCCESS) is ConnectReturnCode.ACCEPTED
    assert (
        to_connect_return_code(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
        is ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION
    )
    failures = [code for code in ReasonCode if code >= 0x80]
    assert all(to_connect_return_code(code) is not ConnectReturnCode.ACCEPTED for code in failures)


@pytest.mark.parametrize(
    "own",
    [
        Properties(receive_maximum=10, assigned_client_identifier="one"),
        Properties(authentication_data=b"proof", authentication_method="m"),
        Properties(receive_maximum=10),
        Properties(receive_maximum=11),
        Properties(retain_available=False),
        Properties(reason_string="why"),
        None,
    ],
)
def test_a_remembered_connack_says_what_a_fresh_one_says(own: Properties | None) -> None:
    wanted = b"\x00\x00" + encode_properties(own, PropertyPlace.CONNACK)
    for _ in range(2):
        assert encode(Connack(False, 0, own), ProtocolVersion.V5)[2:] == wanted


def test_a_property_that_connack_may_not_have_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(EncodeError, match="topic_alias is not allowed in CONNACK"):
            encode(Connack(False, 0, Properties(topic_alias=1)), ProtocolVersion.V5)
