"""3.4 to 3.7 and 4.3: PUBACK, PUBREC, PUBREL, PUBCOMP in every order that may come."""

from __future__ import annotations

import pytest
from tests.conformance.clause import (
    V5,
    V31,
    V311,
    in_3x_and_5,
    in_311_and_5,
    of_5,
    of_311,
    on_tcp_first,
)
from tests.conformance.conftest import Enter
from tests.conformance.wire_client import WireClient

from embermq.mqtt.wire.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

SMALL = Properties(maximum_packet_size=32)


def in_flight(enter: Enter, name: str, qos: int, version: ProtocolVersion = V5) -> tuple[WireClient, Publish]:
    """A kept subscriber that has one message unacknowledged."""
    subscriber = enter("s", version, clean=False, expiry=100)
    subscriber.subscribe(name)
    enter("p").publish(name, b"x", qos=qos)
    return subscriber, subscriber.message(answers=False)


def back(enter: Enter, version: ProtocolVersion = V5) -> WireClient:
    return enter("s", version, clean=False, expiry=100)


@of_5("3.4.2-1", "3.5.2-1")
@pytest.mark.one_broker
@pytest.mark.parametrize("qos", [1, 2])
@on_tcp_first
def test_no_matching_subscribers_is_10(enter: Enter, name: str, qos: int) -> None:
    client, other = enter(), enter("o")
    assert client.publish(name, qos=qos) == 0x10
    client.subscribe(name, no_local=True)
    assert client.publish(name, qos=qos) == 0x10
    other.subscribe(name)
    assert client.publish(name, qos=qos) == 0
    old = enter("old", V311)
    assert old.publish(f"{name}/nobody", qos=qos) == 0


@of_5("3.4.2-2", "3.4.2-3", "3.5.2-2", "3.5.2-3", "3.6.2-2", "3.6.2-3", "3.7.2-2", "3.7.2-3")
@of_5("3.9.2-1", "3.9.2-2", "3.11.2-1", "3.11.2-2", "3.6.2-1", "3.7.2-1", "3.1.2-24")
def test_answers_to_a_client_of_small_packets(enter: Enter, enter_strict: Enter, name: str) -> None:
    """Explanations are left out when the packet would be too large; what is never explained is as small as it can."""
    client = enter(properties=SMALL)
    client.subscribe("t", qos=2)
    client.send(Publish("t", b"x", 1, 1))
    assert {type(client.next()) for _ in range(2)} == {Puback, Publish}
    client.send(Publish("t", b"x", 2, 2))
    assert client.expect(Pubrec) == Pubrec(2)
    client.send(Pubrel(2))
    assert client.expect(Pubcomp) == Pubcomp(2)
    packet_id = client.expect(Publish).packet_id
    client.send(Pubrec(packet_id))
    assert client.expect(Pubrel) == Pubrel(packet_id)
    client.unsubscribe("nothing")
    refused = enter_strict(properties=SMALL)
    bad = Properties(payload_format_indicator=1)
    refused.send(Publish("t", b"\xff", 1, 1, properties=bad))
    assert refused.expect(Puback) == Puback(1, 0x99)
    assert max(client.sizes + refused.sizes) <= 2 * 32
    explained = enter_strict("e")
    explained.send(Publish("t", b"\xff", 1, 1, properties=bad))
    properties = explained.expect(Puback).properties
    assert properties is not None and properties.reason_string


@of_5("4.3.2-5")
@of_311("4.3.2-2")
@in_3x_and_5
@on_tcp_first
def test_after_puback_the_same_identifier_is_a_new_message(
    enter: Enter, name: str, version: ProtocolVersion
) -> None:
    subscriber, client = enter("s"), enter(version=version)
    subscriber.subscribe(name)
    for number, dup in ((1, False), (2, True), (3, False)):
        client.send(Publish(name, b"%d" % number, 1, 5, False, dup))
        client.expect(Puback)
        assert subscriber.message().payload == b"%d" % number


@of_5("4.3.3-10", "4.3.3-12", "4.3.3-11")
@of_311("4.3.3-2")
@in_3x_and_5
@pytest.mark.parametrize("kept", [False, True])
@on_tcp_first
def test_until_pubrel_a_repeated_identifier_is_the_same_message(
    enter: Enter, name: str, version: ProtocolVersion, kept: bool
) -> None:
    subscriber = enter("s")
    subscriber.subscribe(name)
    client = enter(version=version, clean=not kept, expiry=100 if kept else 0)
    client.send(Publish(name, b"1", 2, 5))
    client.expect(Pubrec)
    client.send(Publish(name, b"1", 2, 5, False, True))
    client.expect(Pubrec)
    if kept:
        client.drop()
        client = enter(version=version, clean=False, expiry=100)
        client.send(Publish(name, b"1", 2, 5, False, True))
        client.expect(Pubrec)
    client.send(Pubrel(5))
    client.expect(Pubcomp)
    assert subscriber.message().payload == b"1"
    subscriber.nothing()
    client.send(Publish(name, b"2", 2, 5))
    client.expect(Pubrec)
    client.send(Pubrel(5))
    assert subscriber.message().payload == b"2"


@of_5("4.3.3-8", "4.3.3-11", "4.6.0-5")
@of_311("4.3.3-2")
@in_3x_and_5
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.one_broker
def test_a_live_subscriber_gets_a_message_when_its_publisher_has_released_it(
    enter: Enter, name: str, version: ProtocolVersion, kept: bool
) -> None:
    """A client that listens to itself has PUBCOMP before the message."""
    subscriber, client = enter("s"), enter(version=version, clean=not kept, expiry=100 if kept else 0)
    subscriber.subscribe(name)
    for number in (1, 2, 3):
        client.send(Publish(name, b"%d" % number, 2, number))
        client.expect(Pubrec)
    subscriber.nothing()
    client.send(Pubrel(2))  # not in their order: the messages still are
    client.expect(Pubcomp)
    assert [subscriber.expect(Publish).payload for _ in range(2)] == [b"1", b"2"]
    client.drop()  # what was acknowledged is not lost with its publisher
    assert subscriber.message().payload == b"3"
    alone = enter("alone", version)
    alone.subscribe(name)
    alone.send(Publish(name, b"x", 2, 1))
    alone.expect(Pubrec)
    alone.send(Pubrel(1))
    alone.expect(Pubcomp)
    assert alone.message().payload == b"x"


@of_5("3.6.2-1", "3.7.2-1", "4.3.3-11")
@in_3x_and_5
@on_tcp_first
def test_an_unknown_pubrel_is_answered_by_pubcomp_92(
    enter: Enter, name: str, version: ProtocolVersion
) -> None:
    client = enter(version=version)
    code = 0x92 if version is V5 else 0
    client.send(Pubrel(9))
    assert client.expect(Pubcomp) == Pubcomp(9, code)
    client.send(Publish(name, b"x", 2, 9))
    client.expect(Pubrec)
    for expected in (0, code):
        client.send(Pubrel(9))
        assert client.expect(Pubcomp) == Pubcomp(9, expected)


@of_5("3.6.2-1")
@in_3x_and_5
@on_tcp_first
def test_an_unknown_pubrec_is_answered_by_pubrel_92(enter: Enter, version: ProtocolVersion) -> None:
    client = enter(version=version)
    client.send(Pubrec(9))
    assert client.expect(Pubrel) == Pubrel(9, 0x92 if version is V5 else 0)
    if version is V5:
        client.send(Pubrec(9, 0x80))
    client.send(Puback(9), Pubcomp(9))
    client.nothing()


@of_5("4.3.3-4", "4.3.3-5", "4.3.3-6", "4.4.0-1")
@of_311("4.3.3-1", "4.4.0-1")
@in_3x_and_5
@on_tcp_first
def test_pubrel_is_repeated_on_a_new_connection_and_publish_is_not(
    enter: Enter, name: str, version: ProtocolVersion
) -> None:
    subscriber, message = in_flight(enter, name, 2, version)
    subscriber.send(Pubrec(message.packet_id))
    assert subscriber.expect(Pubrel).packet_id == message.packet_id
    subscriber.nothing()
    for _ in range(2):
        subscriber.drop()
        subscriber = back(enter, version)
        assert subscriber.expect(Pubrel).packet_id == message.packet_id
    subscriber.send(Pubcomp(message.packet_id))
    subscriber.ping()
    subscriber.drop()
    back(enter, version).nothing()


@of_5("4.3.3-4")
@of_311("4.3.3-1")
@in_3x_and_5
@on_tcp_first
def test_every_pubrec_is_answered_by_pubrel(enter: Enter, name: str, version: ProtocolVersion) -> None:
    subscriber, message = in_flight(enter, name, 2, version)
    for _ in range(3):
        subscriber.send(Pubrec(message.packet_id))
        assert subscriber.expect(Pubrel).packet_id == message.packet_id
    subscriber.send(Pubcomp(message.packet_id))
    subscriber.nothing()


@of_5("4.4.0-2", "4.3.3-9", "4.3.3-4")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kept", [False, True])
@on_tcp_first
def test_an_acknowledgement_with_an_error_ends_the_delivery(
    enter: Enter, name: str, qos: int, kept: bool
) -> None:
    properties = Properties(receive_maximum=1, session_expiry_interval=100 if kept else None)
    subscriber = enter("s", properties=properties)
    subscriber.subscribe(name)
    publisher = enter("p")
    publisher.publish(name, b"1", qos=qos)
    publisher.publish(name, b"2", qos=qos)
    message = subscriber.message(answers=False)
    subscriber.send((Puback if qos == 1 else Pubrec)(message.packet_id, 0x83))
    second = subscriber.message()
    assert second.payload == b"2"  # no PUBREL before it, and the window is free
    subscriber.leave()
    enter("s", clean=False, expiry=0).nothing()


@of_5("4.13.1-1")
@of_311("4.8.0-1")
@in_311_and_5
@pytest.mark.parametrize(("qos", "wrong"), [(1, Pubrec), (1, Pubcomp), (2, Puback), (2, Pubcomp)])
@on_tcp_first
def test_a_step_that_a_delivery_is_not_at_is_a_protocol_error(
    enter: Enter, name: str, version: ProtocolVersion, qos: int, wrong: type[Puback | Pubrec | Pubcomp]
) -> None:
    subscriber, message = in_flight(enter, name, qos, version)
    packet: Packet = wrong(message.packet_id)
    subscriber.send(packet)
    said = subscriber.end()
    assert (said.reason_code if said else None) == (0x82 if version is V5 else None)
    again = back(enter, version).message()
    assert (again.payload, again.dup, again.qos) == (b"x", True, qos)


@on_tcp_first
def test_a_wrong_step_is_ignored_in_3_1(enter: Enter, name: str) -> None:
    subscriber, message = in_flight(enter, name, 2, V31)
    subscriber.send(Puback(message.packet_id), Pubcomp(message.packet_id))
    subscriber.nothing()
    subscriber.acknowledge(message)
    subscriber.nothing()


@of_5("4.3.3-7", "4.3.3-13")
@on_tcp_first
def test_expiry_does_not_stop_an_exchange_that_has_begun(enter: Enter, name: str) -> None:
    expiry = Properties(message_expiry_interval=1)
    subscriber, publisher = enter("s", expiry=100), enter("p")
    subscriber.subscribe(name)
    publisher.send(Publish(name, b"x", 2, 1, properties=expiry))
    publisher.expect(Pubrec)
    message = subscriber.message(answers=False)
    subscriber.nothing(1.05)
    publisher.send(Pubrel(1))
    publisher.expect(Pubcomp)
    subscriber.drop()
    subscriber = back(enter)
    again = subscriber.message()
    assert (again.packet_id, again.dup) == (message.packet_id, True)
    subscriber.nothing()
