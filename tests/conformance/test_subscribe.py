"""3.8 to 3.11: SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conformance.clause import V5, in_3x_and_5, in_311_and_5, of_5, of_31, of_311
from tests.conformance.conftest import Enter
from tests.conformance.wire_client import WireClient

from embermq.mqtt.wire.packets import (
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from embermq.mqtt.wire.version import ProtocolVersion

Opened = Callable[..., WireClient]


def refused(client: WireClient, data: bytes, code: int) -> None:
    """The bytes end the connection: with the reason code in 5.0, silently before."""
    client.send_bytes(data)
    said = client.end()
    assert (said.reason_code if said else None) == (code if client.version is V5 else None)


@of_5("3.8.1-1", "3.10.1-1", "3.6.1-1")
@of_311("3.8.1-1", "3.10.1-1", "3.6.1-1")
@in_311_and_5
@pytest.mark.parametrize("flags", [0, 1, 3, 4, 6, 8, 0xA, 0xF])
def test_flags_are_0010(enter: Enter, version: ProtocolVersion, flags: int) -> None:
    middle = b"\0" if version is V5 else b""
    for kind, rest in (
        (0x80, b"\0\1" + middle + b"\0\1t\0"),
        (0xA0, b"\0\1" + middle + b"\0\1t"),
        (0x60, b"\0\1"),
    ):
        refused(enter(version=version), bytes((kind | flags, len(rest))) + rest, 0x81)


@of_5("3.8.3-2", "3.10.3-2")
@of_311("3.8.3-3", "3.10.3-2")
@in_3x_and_5
def test_there_is_at_least_one_filter(enter: Enter, version: ProtocolVersion) -> None:
    rest = b"\0\1" + (b"\0" if version is V5 else b"")
    for first in (0x82, 0xA2):
        refused(enter(version=version), bytes((first, len(rest))) + rest, 0x82)


@of_5("3.8.3-5")
@of_311("3.8.3-4")
@in_311_and_5
def test_reserved_bits_of_the_options(enter: Enter, version: ProtocolVersion) -> None:
    middle = b"\0" if version is V5 else b""
    malformed = (0x40, 0x80) if version is V5 else (0x04, 0x08, 0x10, 0x80)
    for options, code in (*((option, 0x81) for option in malformed), (0x03, 0x82)):
        rest = b"\0\1" + middle + b"\0\1t" + bytes((options,))
        refused(enter(version=version), bytes((0x82, len(rest))) + rest, code)
    if version is V5:
        refused(enter(), b"\x82\x07\0\1\0\0\1t\x30", 0x82)  # Retain Handling 3


@of_5("3.8.3-1", "3.10.3-1", "4.7.1-1", "4.7.1-2", "4.7.3-1", "4.8.2-1", "4.8.2-2")
@of_311("3.8.3-1", "3.10.3-1", "4.7.1-2", "4.7.1-3", "4.7.3-1")
@in_311_and_5
@pytest.mark.parametrize(
    "text", ["", "#/a", "a/#/b", "a#", "a/b#", "a+", "+a", "a/+b/c", "$share//t", "$share/g+/t", "$share/#/t"]
)
def test_a_filter_that_is_wrong(enter: Enter, version: ProtocolVersion, text: str) -> None:
    middle = b"\0" if version is V5 else b""
    field = len(text).to_bytes(2, "big") + text.encode()
    for first, tail in ((0x82, b"\0"), (0xA2, b"")):
        rest = b"\0\1" + middle + field + tail
        refused(enter(version=version), bytes((first, len(rest))) + rest, 0x8F if text else 0x81)


@of_5("4.8.2-1", "4.8.2-2")
@pytest.mark.parametrize("text", ["$share/g", "$share/g/", "$share/", "$share/g/a#"])
def test_a_shared_filter_that_is_wrong(enter: Enter, text: str) -> None:
    rest = b"\0\1\0" + len(text).to_bytes(2, "big") + text.encode() + b"\0"
    refused(enter(), bytes((0x82, len(rest))) + rest, 0x8F)


@of_5("3.8.3-3")
def test_no_local(enter: Enter, name: str) -> None:
    client, other = enter(expiry=100), enter("o")
    client.subscribe(f"{name}/#", no_local=True)
    for qos in (0, 1, 2):
        client.publish(f"{name}/own", qos=qos, retain=True)
        other.publish(f"{name}/other", b"%d" % qos, qos=qos)
        assert client.message().payload == b"%d" % qos
    client.leave()
    client = enter(clean=False, expiry=100)  # the client id counts, not the connection
    client.publish(f"{name}/own", b"x")
    client.nothing()
    client.subscribe(f"{name}/own")  # another subscription, without No Local
    assert client.message().retain  # retained
    client.send(Publish(f"{name}/own", b"y", 1, 1))
    assert {type(client.next()) for _ in range(2)} == {Puback, Publish}


@of_5("3.8.3-4")
def test_no_local_is_not_for_shared_subscriptions(enter: Enter) -> None:
    refused(enter(), b"\x82\x10\0\1\0\0\x0a$share/g/t\x05", 0x82)


@of_5("3.8.4-1", "3.8.4-2", "3.8.4-5", "3.8.4-6", "3.8.4-7", "3.9.3-1", "3.9.3-2")
@of_311("3.8.4-1", "3.8.4-2", "3.8.4-4", "3.8.4-5", "3.8.4-6", "3.9.3-1", "3.9.3-2")
@of_31("3.8 several filters")
@in_3x_and_5
def test_several_filters_are_answered_together_and_in_order(
    enter: Enter, name: str, version: ProtocolVersion
) -> None:
    client, publisher = enter(version=version), enter("p")
    deep = "/".join("x" * 200)  # more levels than this broker takes
    asked = (
        Subscription(f"{name}/0", 0),
        Subscription(f"{name}/2", 2),
        Subscription(deep, 1),
        Subscription(f"{name}/1", 1),
        Subscription(f"{name}/0", 1),
    )
    client.send(Subscribe(77, asked))
    answer = client.expect(Suback)
    failure = 0x8F if version is V5 else 0x80
    assert (answer.packet_id, answer.reason_codes) == (77, (0, 2, failure, 1, 1))
    for number in (0, 1, 2):
        publisher.publish(f"{name}/{number}", qos=2)
        assert client.message().qos == max(1, number)  # of two for the same filter the later one holds


@of_5("3.8.4-3", "3.8.4-4", "3.3.1-9")
@of_311("3.8.4-3")
@in_3x_and_5
def test_the_same_filter_again_replaces(enter: Enter, name: str, version: ProtocolVersion) -> None:
    publisher = enter("p")
    publisher.publish(f"{name}/r", b"kept", retain=True)
    client = enter(version=version)
    client.subscribe(f"{name}/+", qos=2)
    assert client.message().payload == b"kept"
    client.subscribe(f"{name}/+", qos=0)
    message = client.message()  # retained messages are sent again
    assert (message.payload, message.qos, message.retain) == (b"kept", 0, True)
    publisher.publish(f"{name}/x", b"once", qos=2)
    message = client.message()
    assert (message.payload, message.qos) == (b"once", 0)
    client.nothing()
    if version is V5:
        client.subscribe(f"{name}/+", identifier=9, handling=2)
        publisher.publish(f"{name}/x", qos=0)
        properties = client.message().properties
        assert properties is not None and properties.subscription_identifiers == (9,)


@of_5("3.8.4-4")
@of_311("3.8.4-3")
def test_nothing_is_lost_while_a_subscription_is_replaced(enter: Enter, name: str) -> None:
    client, publisher = enter(expiry=100), enter("p")
    client.subscribe(name, qos=1)
    for number in range(1, 200):
        publisher.send(Publish(name, b"%d" % number, 1, number))
        client.send(Subscribe(number, (Subscription(name, 1, False, False, 2),)))
    payloads: list[int] = []
    while len(payloads) < 199:
        packet = client.next()
        if isinstance(packet, Publish):
            payloads.append(int(packet.payload))
            client.send(Puback(packet.packet_id))
    assert payloads == list(range(1, 200))


@of_5("3.8.4-8")
@of_311("3.8.4-6")
@in_3x_and_5
@pytest.mark.parametrize("kept", [False, True])
def test_the_lower_qos_of_message_and_subscription_holds(
    enter: Enter, name: str, version: ProtocolVersion, kept: bool
) -> None:
    publisher = enter("p")
    client = enter(version=version, clean=not kept, expiry=100 if kept else 0)
    for granted in (0, 1, 2):
        client.subscribe(f"{name}/{granted}", qos=granted)
        for qos in (0, 1, 2):
            publisher.publish(f"{name}/{granted}", qos=qos)
            assert client.message().qos == min(qos, granted)


@of_311("3.8.3-2")
@in_311_and_5
def test_what_is_switched_off_is_refused(enter_strict: Enter, name: str, version: ProtocolVersion) -> None:
    """3.1.1 has only the failure of SUBACK for it; 5.0 names it and ends the connection [3.2.2.3.11 and 13]."""
    for text, code in ((f"{name}/#", 0xA2), (f"{name}/+/x", 0xA2), (f"$share/g/{name}", 0x9E)):
        client = enter_strict(version=version)
        if version is V5:
            client.send(Subscribe(1, (Subscription(name, 0), Subscription(text, 0))))
            assert client.ended_with() == code
        else:
            assert client.subscribe(name, text, qos=1) == (1, 0x80)


def test_what_is_switched_off_is_told(strict_broker: object, opened: Opened, name: str, port: int) -> None:
    told = opened(strict_broker.port, V5, name).connect().properties  # type: ignore[attr-defined]
    assert told is not None
    assert told.wildcard_subscription_available is False
    assert told.subscription_identifier_available is not False
    assert told.shared_subscription_available is False
    told = opened(port, V5, name).connect().properties
    assert told is not None
    assert told.wildcard_subscription_available is not False
    assert told.subscription_identifier_available is not False
    assert told.shared_subscription_available is not False


@of_5("3.10.4-1", "3.10.4-2", "3.10.4-4", "3.10.4-5", "3.10.4-6", "3.11.3-1", "3.11.3-2")
@of_311("3.10.4-1", "3.10.4-2", "3.10.4-4", "3.10.4-5", "3.10.4-6")
@of_31("3.10 unsubscribe")
@in_3x_and_5
def test_unsubscribe(enter: Enter, name: str, version: ProtocolVersion) -> None:
    client, publisher = enter(version=version), enter("p")
    client.subscribe(f"{name}/a", f"{name}/+", f"{name}/b")
    client.send(Unsubscribe(5, (f"{name}/A", f"{name}/a", f"{name}/#", f"{name}/b")))
    answer = client.expect(Unsuback)
    assert answer.packet_id == 5
    if version is V5:
        assert answer.reason_codes == (0x11, 0, 0x11, 0)
    publisher.publish(f"{name}/a", b"by the wildcard")  # which was not named, however well it matches
    assert client.message().payload == b"by the wildcard"
    client.nothing(0.02)
    client.unsubscribe(f"{name}/+")
    publisher.publish(f"{name}/a")
    client.nothing()
    client.unsubscribe(f"{name}/never")  # answered all the same


@of_5("3.10.4-3", "3.10.4-2")
@of_311("3.10.4-3", "3.10.4-2")
@in_3x_and_5
def test_deliveries_that_have_begun_are_completed(enter: Enter, name: str, version: ProtocolVersion) -> None:
    client, publisher = enter("s", version, clean=False, expiry=100), enter("p")
    client.subscribe(name)
    publisher.publish(name, b"1", qos=1)
    publisher.publish(name, b"2", qos=2)
    held = [client.message(answers=False) for _ in range(2)]
    client.unsubscribe(name)
    publisher.publish(name, b"3", qos=1)
    client.nothing()
    client.drop()
    client = enter("s", version, clean=False, expiry=100)
    again = [client.message(answers=False) for _ in range(2)]
    assert [message.packet_id for message in again] == [message.packet_id for message in held]
    client.acknowledge(again[0])
    client.acknowledge(again[1])
    client.nothing()


def test_a_subscription_identifier_is_refused_where_it_is_wrong(enter: Enter) -> None:
    refused(enter(), b"\x82\x08\0\1\2\x0b\0\0\1t\0"[:10], 0x82)  # 0
    refused(enter(), b"\x82\x0a\0\1\4\x0b\1\x0b\2\0\1t\0"[:12], 0x82)  # twice
