"""Chapters 1 and 2: strings, integers, headers, packet identifiers, properties."""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance.clause import V5, V31, V311, in_3x_and_5, in_311_and_5, of_5, of_311
from tests.conformance.conftest import Enter
from tests.conformance.wire_client import WireClient

from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Connack, Connect, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion


@of_5("1.5.4-3")
@of_311("1.5.3-3")
@in_311_and_5
def test_a_byte_order_mark_is_a_character(enter: Enter, name: str, version: ProtocolVersion) -> None:
    client = enter(version=version)
    client.subscribe(f"\ufeff{name}")
    client.publish(name, b"plain", qos=0)
    client.publish(f"\ufeff{name}", b"marked", qos=0)
    message = client.message()
    assert (message.topic, message.payload) == (f"\ufeff{name}", b"marked")


@of_5("1.5.4-1", "1.5.4-2", "1.5.7-1", "3.1.3-4", "3.1.3-11", "3.1.3-12", "3.3.2-13", "3.3.2-19")
@of_311("1.5.3-1", "1.5.3-2", "3.1.3-4", "3.1.3-10", "3.1.3-11")
def test_text_that_is_not_utf8_is_refused_wherever_it_stands(
    port: int, opened: Callable[..., WireClient], enter: Enter
) -> None:
    for bad in (b"\xed\xa0\x80", b"\xff", b"a\0b", b"\xc0\xaf", b"\xf4\x90\x80\x80"):
        text = len(bad).to_bytes(2, "big") + bad
        good = b"\0\1g"
        connects = {  # flags and payload
            "client id": (0x02, text),
            "will topic": (0x06, good + text + good),
            "user name": (0x82, good + text),
        }
        for place, (flags, payload) in connects.items():
            for version in (V311, V5):
                properties = b"\0" if version is V5 else b""
                will = version is V5 and place == "will topic"
                rest = good + b"\0" + text + good if will else payload
                body = b"\0\4MQTT" + bytes((version, flags)) + b"\0\0" + properties + rest
                client = opened(port, version)
                client.send_bytes(bytes((0x10, len(body))) + body)
                if version is V5:
                    assert client.expect(Connack).reason_code == 0x81, (place, bad)
                assert client.end() is None, (place, bad)
        for identifier in (0x03, 0x08):  # content type, response topic
            client = enter()
            block = bytes((identifier,)) + text
            body = b"\0\1t" + bytes((len(block),)) + block
            client.send_bytes(bytes((0x30, len(body))) + body)
            assert client.ended_with() == 0x81
        for block in (b"\x26" + text + good, b"\x26" + good + text):  # user property
            client = enter()
            body = b"\0\1t" + bytes((len(block),)) + block
            client.send_bytes(bytes((0x30, len(body))) + body)
            assert client.ended_with() == 0x81
        for version in (V31, V311, V5):  # topic of a PUBLISH, filters
            properties = b"\0" if version is V5 else b""
            for data in (
                b"\x30" + bytes((len(text + properties),)) + text + properties,
                b"\x82" + bytes((len(text + properties) + 3,)) + b"\0\1" + properties + text + b"\0",
                b"\xa2" + bytes((len(text + properties) + 2,)) + b"\0\1" + properties + text,
            ):
                client = enter(version=version)
                client.send_bytes(data)
                said = client.end()
                assert (said.reason_code if said else None) == (0x81 if version is V5 else None)


@of_5("1.5.5-1")
def test_lengths_are_written_in_their_shortest_form(
    port: int, opened: Callable[..., WireClient], name: str
) -> None:
    client = opened(port, V5, name)
    client.connect()
    for size in (0, 100, 127, 128, 16_383, 16_384, 200_000):
        client.subscribe(f"{name}/{size}")
        client.publish(f"{name}/{size}", bytes(size), qos=0)
        assert len(client.message().payload) == size  # the client's decoder refuses a padded length


@of_5("2.1.3-1")
@of_311("2.2.2-1")
@in_3x_and_5
def test_reserved_flags_of_what_the_broker_sends(
    port: int, opened: Callable[..., WireClient], enter: Enter, name: str, version: ProtocolVersion
) -> None:
    """The client's decoder refuses wrong flags; here every packet that a broker sends is seen once."""
    client, publisher = enter(version=version), enter("p", version)
    client.subscribe(name)
    publisher.publish(name, qos=2)
    client.message()
    client.unsubscribe(name)
    client.ping()


@of_5("2.2.1-2")
@of_311("2.3.1-5")
@in_311_and_5
def test_qos_0_has_no_packet_identifier(enter: Enter, name: str, version: ProtocolVersion) -> None:
    client = enter(version=version)
    client.subscribe(name, qos=2)
    client.publish(name, b"\0\1payload", qos=0)
    message = client.message()
    assert (message.packet_id, message.payload) == (0, b"\0\1payload")


@of_5("2.2.1-3")
@of_311("2.3.1-1", "2.3.1-2")
@in_3x_and_5
def test_packet_identifier_0_is_refused(enter: Enter, name: str, version: ProtocolVersion) -> None:
    properties = b"\0" if version is V5 else b""
    for first, rest in (
        (0x32, b"\0\1t\0\0" + properties),
        (0x82, b"\0\0" + properties + b"\0\1t\0"),
        (0xA2, b"\0\0" + properties + b"\0\1t"),
    ):
        client = enter(version=version)
        client.send_bytes(bytes((first, len(rest))) + rest)
        said = client.end()
        assert (said.reason_code if said else None) == (0x82 if version is V5 else None)


@of_5("2.2.1-4", "4.3.2-1", "4.3.3-1")
@of_311("2.3.1-4", "2.3.1-1")
@in_311_and_5
def test_each_message_has_an_identifier_that_is_not_in_use(
    enter: Enter, name: str, version: ProtocolVersion
) -> None:
    subscriber, publisher = enter("s", version), enter("p")
    subscriber.subscribe(name)
    for number in range(40):
        publisher.publish(name, b"%d" % number, qos=1 + number % 2)
    held = [subscriber.message(answers=False).packet_id for _ in range(40)]
    assert len(set(held)) == 40 and 0 not in held
    # Identifiers that come free may be used again, those still in flight may not.
    subscriber.send(Puback(held[0]))
    publisher.publish(name, b"again")
    assert subscriber.message(answers=False).packet_id not in held[1:]


@of_5("2.2.1-5", "4.3.2-4", "4.3.3-8", "4.3.3-11", "3.3.4-1")
@of_311("2.3.1-6", "3.3.4-1")
@in_3x_and_5
def test_acknowledgements_carry_the_identifier(enter: Enter, name: str, version: ProtocolVersion) -> None:
    client = enter(version=version)
    for packet_id in (1, 255, 256, 65_535):
        client.send(Publish(name, b"x", 1, packet_id))
        assert client.expect(Puback).packet_id == packet_id
        client.send(Publish(name, b"x", 2, packet_id))
        assert client.expect(Pubrec).packet_id == packet_id
        client.send(Pubrel(packet_id))
        assert client.expect(Pubcomp).packet_id == packet_id
    client.publish(name, qos=0)
    client.nothing()


@of_5("2.2.1-6", "3.8.4-2", "3.10.4-5")
@of_311("2.3.1-7", "3.8.4-2", "3.10.4-4")
@in_3x_and_5
def test_answers_to_subscribe_carry_the_identifier(enter: Enter, name: str, version: ProtocolVersion) -> None:
    client = enter(version=version)
    for packet_id in (1, 256, 65_535):
        client._last_id = packet_id - 1
        client.subscribe(name)  # checks it
        client._last_id = packet_id - 1
        client.unsubscribe(name)


@of_311("2.3.1-3")
@in_311_and_5
def test_a_resent_publish_is_known_by_its_identifier(
    enter: Enter, name: str, version: ProtocolVersion
) -> None:
    client = enter(version=version)
    client.subscribe(name, qos=0)
    client.send(Publish(name, b"x", 2, 9))
    client.expect(Pubrec)
    client.send(Publish(name, b"x", 2, 9, False, True))
    client.expect(Pubrec)
    client.send(Pubrel(9))
    client.expect(Pubcomp)
    client.message()
    client.nothing()


@of_5("2.2.2-1")
def test_a_packet_without_properties_says_so(enter: Enter, name: str) -> None:
    client = enter()
    client.subscribe(name)
    enter("p").publish(name, b"", qos=1)
    assert client.message().properties is None  # the decoder takes no packet without the length
    assert client.unsubscribe(name) == (0,)


def test_a_packet_may_come_in_any_pieces(port: int, opened: Callable[..., WireClient], name: str) -> None:
    client = opened(port, V5, name)
    connect = Connect(name, V5, True, 0, None, None, None, Properties(user_properties=(("k", "v" * 200),)))
    for byte in encode(connect, V5) + encode(Publish(name, b"x", 1, 1), V5) + b"\xc0\0":
        client.send_bytes(bytes((byte,)))
    client.expect(Connack)
    assert {type(client.next()) for _ in range(2)} == {Puback, Pingresp}
