"""3.3: PUBLISH, retained messages, properties on their way, flow control."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conformance.clause import V5, V311, in_3x_and_5, in_311_and_5, of_5, of_31, of_311
from tests.conformance.conftest import Enter
from tests.conformance.wire_client import WireClient
from tests.support.broker_process import BrokerProcess

from embermq.mqtt.wire.packets import (
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

Opened = Callable[..., WireClient]
ALL = Properties(
    payload_format_indicator=1,
    content_type="text/plain",
    response_topic="answers/here",
    correlation_data=b"\0\xff",
    user_properties=(("b", "2"), ("a", "1"), ("b", "2"), ("", "")),
)


@of_5("3.3.1-1", "3.3.1-3", "4.3.2-2", "4.3.2-3", "4.3.3-2", "4.3.3-3", "4.4.0-1")
@of_311("3.3.1-1", "3.3.1-3", "4.3.2-1", "4.3.3-1", "4.4.0-1")
@of_31("4.1 resend")
@in_3x_and_5
def test_dup_says_that_the_broker_sends_again(enter: Enter, name: str, version: ProtocolVersion) -> None:
    subscriber = enter("s", version, clean=False, expiry=100)
    subscriber.subscribe(name)
    publisher = enter("p", version)
    publisher.send(Publish(name, b"1", 1, 1, False, True), Publish(name, b"2", 2, 2, False, True))
    publisher.expect(Puback), publisher.expect(Pubrec)
    first = [subscriber.message(answers=False) for _ in range(2)]
    assert [(message.payload, message.dup) for message in first] == [(b"1", False), (b"2", False)]
    subscriber.nothing()  # it is not sent again on the same connection
    subscriber.drop()
    again = enter("s", version, clean=False, expiry=100)
    second = [again.message(answers=False) for _ in range(2)]
    assert [(message.payload, message.dup) for message in second] == [(b"1", True), (b"2", True)]
    assert [message.packet_id for message in second] == [message.packet_id for message in first]
    for message in second:
        again.acknowledge(message)
    again.leave()


@of_5("3.3.1-1")
@of_311("3.3.1-1")
@pytest.mark.promise("device-11")
@in_311_and_5
def test_after_a_crash_what_was_not_written_comes_as_if_for_the_first_time(
    tmp_path: Path, opened: Opened, name: str, version: ProtocolVersion
) -> None:
    """Of QoS 1: the first is not acknowledged, the second is, and both are sent within the linger."""
    with BrokerProcess(tmp_path, settings={"device.linger_ms": 10_000}) as broker:
        subscriber = opened(broker.port, version, f"{name}-s")
        subscriber.connect(clean=False, expiry=100)
        subscriber.subscribe(name)
        publisher = opened(broker.port, version, f"{name}-p")
        publisher.connect()
        for payload in (b"1", b"2"):
            publisher.publish(name, payload, qos=1)
        first = [subscriber.message(answers=False) for _ in range(2)]
        subscriber.acknowledge(first[1])
        subscriber.nothing()
        broker.kill()
        broker.start()
        again = opened(broker.port, version, f"{name}-s")
        again.connect(clean=False, expiry=100)
        second = [again.message() for _ in range(2)]
    assert [(message.payload, message.dup) for message in first] == [(b"1", False), (b"2", False)]
    assert [(message.payload, message.dup) for message in second] == [(b"1", False), (b"2", False)]


@of_5("3.3.1-2", "4.3.1-1", "3.3.1-3")
@of_311("3.3.1-2", "4.3.1-1", "3.3.1-3")
@in_3x_and_5
def test_qos_0_goes_out_without_dup(enter: Enter, name: str, version: ProtocolVersion) -> None:
    client, publisher = enter(version=version), enter("p")
    client.subscribe(name, qos=0)
    publisher.send(Publish(name, b"x", 1, 1, False, True))
    publisher.expect(Puback)
    message = client.message()
    assert (message.qos, message.dup) == (0, False)


@of_5("3.3.1-4")
@of_311("3.3.1-4")
@in_3x_and_5
def test_qos_3_is_malformed(enter: Enter, version: ProtocolVersion) -> None:
    client = enter(version=version)
    client.send_bytes(b"\x36\x06\0\1t\0\1\0")
    said = client.end()
    assert (said.reason_code if said else None) == (0x81 if version is V5 else None)


@of_5("3.3.1-5", "3.3.1-8", "3.3.1-9")
@of_311("3.3.1-5", "3.3.1-6", "3.3.1-7", "3.3.1-8", "3.3.1-12", "3.1.2-7")
@of_31("3.3 retain")
@in_3x_and_5
def test_a_retained_message_is_kept_and_replaced(enter: Enter, name: str, version: ProtocolVersion) -> None:
    publisher = enter("p", version)
    publisher.publish(name, b"old", qos=1, retain=True)
    for qos in (2, 1, 0):
        publisher.publish(name, b"new %d" % qos, qos=qos, retain=True)
        publisher.publish(name, b"passing", qos=1)
        publisher.leave()
        publisher = enter("p", version)
        client = enter(f"c{qos}", version)
        client.subscribe(name, qos=2)
        message = client.message()
        assert (message.payload, message.qos, message.retain) == (b"new %d" % qos, qos, True)
        client.nothing()


@of_5("3.3.1-6", "3.3.1-7")
@of_311("3.3.1-10", "3.3.1-11")
@in_3x_and_5
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_empty_retained_message_deletes(
    enter: Enter, name: str, version: ProtocolVersion, qos: int
) -> None:
    publisher, present = enter("p", version), enter("w", version)
    publisher.publish(name, b"x", retain=True)
    present.subscribe(name)
    present.message()
    publisher.publish(name, b"", qos=qos, retain=True)
    message = present.message()
    assert (message.payload, message.retain) == (b"", False)
    late = enter("l", version)
    late.subscribe(name)
    late.nothing()


@of_5("3.3.1-9", "3.3.1-10", "3.3.1-11", "3.8.4-4")
def test_retain_handling(enter: Enter, name: str) -> None:
    enter("p").publish(name, b"kept", retain=True)
    client = enter()
    for handling, comes in ((2, False), (1, False), (0, True)):  # not 1: the subscription is there already
        client.subscribe(name, handling=handling)
        if comes:
            assert client.message().retain
        client.nothing()
    client.unsubscribe(name)
    client.subscribe(name, handling=1)
    assert client.message().payload == b"kept"
    client.unsubscribe(name)
    client.subscribe(name, handling=2)
    client.nothing()


@of_5("3.3.1-12", "3.3.1-13")
@of_311("3.3.1-9")
def test_retain_as_published(enter: Enter, name: str) -> None:
    plain, exact, old = enter("a"), enter("b"), enter("o", V311)
    plain.subscribe(name)
    exact.subscribe(name, as_published=True)
    old.subscribe(name)
    publisher = enter("p")
    for qos in (0, 1, 2):
        for retain in (True, False):
            publisher.publish(name, b"x", qos=qos, retain=retain)
            assert plain.message().retain is False
            assert exact.message().retain is retain
            assert old.message().retain is False


@of_5("3.3.2-1", "3.3.2-2", "4.7.0-1", "4.7.3-1")
@of_311("3.3.2-1", "3.3.2-2", "4.7.1-1", "4.7.3-1")
@in_3x_and_5
@pytest.mark.parametrize("topic", [b"a/+", b"#", b"a/b#", b"+x", b""])
def test_a_topic_name_is_refused(enter: Enter, version: ProtocolVersion, topic: bytes) -> None:
    client = enter(version=version)
    body = len(topic).to_bytes(2, "big") + topic + (b"\0" if version is V5 else b"") + b"x"
    client.send_bytes(bytes((0x30, len(body))) + body)
    said = client.end()
    code = 0x81 if topic else 0x82
    assert (said.reason_code if said else None) == (code if version is V5 else None)


@of_5("3.3.2-3")
@of_311("3.3.2-3")
@in_311_and_5
def test_topics_that_are_sent_match_the_filter(enter: Enter, name: str, version: ProtocolVersion) -> None:
    client, publisher = enter(version=version), enter("p")
    client.subscribe(f"{name}/+/c", f"{name}/d/#")
    topics = ["a/c", "b/c", "a/b/c", "d", "d/e/f", "a/c/c", "e"]
    for topic in topics:
        publisher.publish(f"{name}/{topic}", qos=1)
    publisher.publish(f"{name}/d", b"last", qos=1)
    sent = [message.topic for message in client.messages(5)]
    assert sent == [f"{name}/{topic}" for topic in ("a/c", "b/c", "d", "d/e/f", "d")]


@of_5("3.3.2-4", "3.3.2-13", "3.3.2-15", "3.3.2-16", "3.3.2-17", "3.3.2-18", "3.3.2-19", "3.3.2-20")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_properties_travel_with_the_message(enter: Enter, name: str, qos: int, kept: bool) -> None:
    subscriber = enter("s", expiry=100 if kept else 0)
    subscriber.subscribe(name)
    publisher = enter("p")
    publisher.publish(name, "ü".encode(), qos=qos, retain=True, properties=ALL)
    assert subscriber.message().properties == ALL
    late = enter("l")
    late.subscribe(name)
    assert late.message().properties == ALL  # retained ones too
    old = enter("o", V311)
    old.subscribe(name)
    assert old.message().properties is None
    subscriber.leave()
    if qos and kept:
        publisher.publish(name, b"later", qos=qos, properties=ALL)
        assert enter("s", clean=False, expiry=0).message().properties == ALL


@of_5("3.3.2-14")
def test_a_response_topic_has_no_wildcards(enter: Enter) -> None:
    client = enter()
    client.send_bytes(b"\x30\x09\0\1t\x05\x08\0\2a#x")
    assert client.ended_with() == 0x90


@of_5("3.3.2-4")
def test_a_payload_format_is_checked_when_asked(enter_strict: Enter, enter: Enter, name: str) -> None:
    text = Properties(payload_format_indicator=1)
    client = enter_strict()
    assert client.publish(name, "ü".encode(), properties=text) == 0x10
    assert client.publish(name, b"\xff", properties=text) == 0x99
    assert client.publish(name, b"\xff", properties=Properties(payload_format_indicator=0)) == 0x10
    client.send(Publish(name, b"\xff", 0, 0, properties=text))
    assert client.ended_with() == 0x99
    relaxed = enter("r")
    relaxed.subscribe(name, qos=0)
    relaxed.publish(name, b"\xff", qos=0, properties=text)
    assert relaxed.message().payload == b"\xff"


@of_5("3.3.2-5", "3.3.2-6")
def test_a_message_expires_and_tells_what_is_left(enter: Enter, name: str) -> None:
    away = enter("s", expiry=100)
    away.subscribe(name)
    away.leave()
    present = enter("w")
    present.subscribe(name)
    publisher = enter("p")
    for seconds in (1, 30):
        publisher.publish(name, b"%d" % seconds, properties=Properties(message_expiry_interval=seconds))
        properties = present.message().properties
        assert properties is not None and properties.message_expiry_interval == seconds
    publisher.publish(f"{name}/r", b"short", retain=True, properties=Properties(message_expiry_interval=1))
    publisher.publish(f"{name}/r2", b"long", retain=True, properties=Properties(message_expiry_interval=30))
    present.nothing(1.05)
    back = enter("s", clean=False, expiry=0)
    message = back.message()
    assert message.payload == b"30"
    assert message.properties is not None and message.properties.message_expiry_interval in (28, 29)
    back.nothing()
    back.subscribe(f"{name}/+")
    message = back.message()
    assert message.payload == b"long"
    assert message.properties is not None and message.properties.message_expiry_interval in (28, 29)
    back.nothing()


@of_5("3.3.2-7", "3.3.2-8", "3.3.2-12")
def test_aliases_of_the_client(enter: Enter, name: str) -> None:
    subscriber, client = enter("s"), enter()
    subscriber.subscribe(f"{name}/#")

    def aliased(topic: str, alias: int, payload: bytes) -> Publish:
        return Publish(topic, payload, 0, 0, properties=Properties(topic_alias=alias))

    for alias in range(1, 33):  # every one that is offered
        client.send(aliased(f"{name}/{alias}", alias, b"set"))
        assert subscriber.message().topic == f"{name}/{alias}"
    for alias in (32, 1):
        client.send(aliased("", alias, b"used"))
        message = subscriber.message()
        assert message.topic == f"{name}/{alias}"
        assert message.properties is None  # the alias is not passed on
    client.send(aliased(f"{name}/new", 1, b"moved"), aliased("", 1, b"used"))
    assert [subscriber.message().topic for _ in range(2)] == [f"{name}/new"] * 2
    client.leave()
    again = enter()
    again.send(aliased("", 1, b"of another connection"))
    assert again.ended_with() == 0x82
    zero = enter()
    zero.send_bytes(b"\x30\x07\0\1t\x03\x23\0\0")
    assert zero.ended_with() == 0x94


@of_5("3.1.2-26", "3.1.2-27", "3.3.2-11", "3.3.2-7", "3.3.2-8")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("maximum", [None, 0, 2])
def test_aliases_of_the_broker(enter: Enter, name: str, qos: int, maximum: int | None) -> None:
    publisher = enter("p")
    for _ in range(2):  # a new connection begins anew
        client = enter(properties=Properties(topic_alias_maximum=maximum))
        client.subscribe(f"{name}/+", qos=qos, identifier=7)
        topics = {}
        for number in (1, 2, 3, 3, 2, 1):
            publisher.publish(f"{name}/{number}", b"%d" % number, qos=qos, properties=ALL)
            message = client.message()
            assert message.properties is not None and message.payload == b"%d" % number
            assert message.properties.subscription_identifiers == (7,)
            assert message.properties.user_properties == ALL.user_properties
            alias = message.properties.topic_alias
            if not maximum:
                assert alias is None
            elif alias is not None:
                assert 1 <= alias <= maximum
            if message.topic:
                topics[alias] = message.topic
            assert topics[alias] == f"{name}/{number}"
        assert len(topics) == (3 if maximum else 1)
        client.leave()


@of_5("3.3.4-2", "3.3.4-3", "3.3.4-4", "3.3.4-5")
@of_311("3.3.5-1")
@in_311_and_5
def test_overlapping_subscriptions_are_one_copy_of_the_highest_qos(
    enter: Enter, name: str, version: ProtocolVersion
) -> None:
    client, publisher = enter(version=version), enter("p")
    v5 = version is V5
    client.subscribe(f"{name}/#", qos=0, identifier=1 if v5 else 0)
    client.subscribe(f"{name}/+", qos=2, identifier=2 if v5 else 0)
    client.subscribe(f"{name}/a", qos=1, identifier=268_435_455 if v5 else 0)
    client.subscribe(f"{name}/a/#", qos=1)
    publisher.publish(f"{name}/a", b"x", qos=2)
    message = client.message()
    assert message.qos == 2
    if v5:
        assert message.properties is not None
        assert sorted(message.properties.subscription_identifiers) == [1, 2, 268_435_455]
    client.nothing()


@of_5("3.3.4-6")
def test_a_client_sends_no_subscription_identifier(enter: Enter) -> None:
    client = enter()
    client.send_bytes(b"\x30\x06\0\1t\x02\x0b\1")
    assert client.ended_with() == 0x82


@of_311("3.3.5-2")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(
    ("topic", "ends"), [("$SYS/{name}", False), ("$SYS/broker/uptime", False), ("{name}" + 128 * "/", True)]
)
def test_what_is_not_allowed_is_not_published(
    enter: Enter, name: str, topic: str, qos: int, ends: bool
) -> None:
    """Below $SYS nobody but the broker publishes; topics have at most so many levels."""
    topic = topic.format(name=name)
    watcher = enter("w")
    watcher.subscribe(f"{name}/#", f"$SYS/{name}")
    client = enter(version=V311)
    client.publish(topic, qos=0)
    client.ping()
    client.send(Publish(topic, b"x", qos, 1))
    if ends:
        assert client.end() is None
    else:
        client.expect(Puback if qos == 1 else Pubrec)
    watcher.nothing()


@of_5("3.4.2-1", "3.5.2-1", "4.3.3-9", "4.4.0-2")
@pytest.mark.parametrize("topic", ["$SYS/{name}", "$SYS/broker/uptime", "{name}" + 128 * "/"])
def test_a_topic_that_is_not_accepted_is_a_matter_of_its_message(enter: Enter, name: str, topic: str) -> None:
    """0x90: the topic name is not malformed, but not accepted. The connection goes on, answers keep their order."""
    topic = topic.format(name=name)
    watcher = enter("w")
    watcher.subscribe(f"{name}/#", f"$SYS/{name}")
    client = enter()
    client.send(
        Publish(f"{name}/a", b"1", 1, 1),
        Publish(topic, b"x", 1, 2, True),
        Publish(topic, b"x", 0, 0),
        Publish(topic, b"x", 2, 3),
        Publish(f"{name}/a", b"2", 1, 4),
    )
    answers = [client.next() for _ in range(4)]
    assert [(type(answer), answer.packet_id, answer.reason_code) for answer in answers] == [  # type: ignore[union-attr]
        (Puback, 1, 0),
        (Puback, 2, 0x90),
        (Pubrec, 3, 0x90),
        (Puback, 4, 0),
    ]
    client.send(Publish(f"{name}/a", b"3", 2, 3))  # the id is free
    client.expect(Pubrec)
    client.send(Pubrel(3))
    assert [message.payload for message in watcher.messages(3)] == [b"1", b"2", b"3"]
    watcher.nothing()


@of_5("2.2.1-3")
def test_a_packet_id_that_a_qos_2_message_holds(enter: Enter, name: str) -> None:
    """0x91 for a QoS 1 message with it, and the exchange goes on as if nothing had happened."""
    watcher, client = enter("w"), enter()
    watcher.subscribe(name)
    client.send(Publish(name, b"1", 2, 5))
    client.expect(Pubrec)
    client.send(Publish(name, b"2", 1, 5))
    refused = client.expect(Puback)
    assert (refused.packet_id, refused.reason_code) == (5, 0x91)
    client.send(Pubrel(5))
    assert client.expect(Pubcomp) == Pubcomp(5)
    client.send(Publish(name, b"3", 1, 5))
    assert client.expect(Puback).reason_code == 0
    assert [message.payload for message in watcher.messages(2)] == [b"1", b"3"]


@of_311("2.3.1-2")
@pytest.mark.one_broker
def test_in_3x_such_a_message_is_one_of_its_own(enter: Enter, name: str) -> None:
    watcher, client = enter("w"), enter(version=V311)
    watcher.subscribe(name)
    client.send(Publish(name, b"1", 2, 5))
    client.expect(Pubrec)
    client.send(Publish(name, b"2", 1, 5))
    assert client.expect(Puback).packet_id == 5
    client.send(Pubrel(5))
    assert client.expect(Pubcomp) == Pubcomp(5)
    assert [message.payload for message in watcher.messages(2)] == [b"2", b"1"]


@in_311_and_5
@pytest.mark.parametrize("kept", [False, True])
def test_a_client_that_sends_nothing_more_still_has_its_answers(
    enter: Enter, name: str, version: ProtocolVersion, kept: bool
) -> None:
    """Behind them the connection ends."""
    client = enter(version=version, clean=not kept, expiry=100 if kept else 0)
    client.send(Publish(name, b"1", 1, 1), Publish(name, b"2", 2, 2))
    client.finish_sending()
    assert client.expect(Puback).packet_id == 1
    assert client.expect(Pubrec).packet_id == 2
    assert client.end() is None


@of_5("3.3.4-7", "4.9.0-1")
def test_more_than_the_receive_maximum_ends_the_connection(enter_strict: Enter, name: str) -> None:
    """In one piece, so that none of them can have been acknowledged."""
    client = enter_strict()
    client.send(*(Publish(name, b"x", 1, number) for number in range(1, 6)))
    assert [client.expect(Puback).packet_id for _ in range(5)] == [1, 2, 3, 4, 5]
    client.send(*(Publish(name, b"x", 1, number) for number in range(1, 7)))
    assert client.ended_with() == 0x93


@of_5("3.3.4-7", "4.9.0-1")
def test_qos_2_counts_until_pubcomp(enter: Enter, name: str) -> None:
    client = enter()
    for start in range(1, 1025, 256):
        client.send(*(Publish(name, b"", 2, number) for number in range(start, start + 256)))
        for _ in range(256):
            client.expect(Pubrec)
    for _ in range(3):  # one is given back, one is taken
        client.send(Pubrel(7))
        client.expect(Pubcomp)
        client.send(Publish(name, b"", 2, 7))
        client.expect(Pubrec)
    client.send(*(Publish(name, b"", 2, 2_000 + number) for number in range(5)), Pingreq())
    assert client.ended_with() == 0x93


@of_5("3.3.4-7", "4.13.2-1")
def test_the_reason_is_read_although_the_client_goes_on_sending(enter_strict: Enter, name: str) -> None:
    client = enter_strict()
    client.send(*(Publish(name, bytes(900), 1, number) for number in range(1, 400)))
    assert client.ended_with() == 0x93


@of_5("3.3.4-8", "3.3.4-10", "4.9.0-3", "3.3.4-9", "4.9.0-2", "4.9.0-1")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_the_clients_receive_maximum_is_kept(enter: Enter, name: str, qos: int, kept: bool) -> None:
    properties = Properties(receive_maximum=2, session_expiry_interval=100 if kept else None)
    client = enter(properties=properties)
    client.subscribe(name)
    publisher = enter("p")
    for number in range(6):
        publisher.publish(name, b"%d" % number, qos=qos)
    held = [client.message(answers=False) for _ in range(2)]
    client.nothing()
    publisher.publish(name, b"qos 0", qos=0)  # needs no quota
    assert client.message().payload == b"qos 0"
    client.send(Subscribe(1, (Subscription(f"{name}/x", 0),)))  # other packets are still answered
    client.next()
    client.send(Publish(f"{name}/x", b"own", 1, 1))
    assert {type(client.next()) for _ in range(2)} == {Puback, Publish}
    for number in range(2, 6):
        if qos == 2:
            client.send(Pubrec(held[0].packet_id))
            client.expect(Pubrel)
            client.nothing(0.05)  # PUBREC gives nothing back
            client.send(Pubcomp(held[0].packet_id))
        else:
            client.send(Puback(held[0].packet_id))
        held = [held[1], client.message(answers=False)]
        assert held[1].payload == b"%d" % number
        client.nothing(0.05)


@of_5("3.1.2-24", "3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_what_is_too_large_for_the_client_is_dropped_for_it(
    enter: Enter, name: str, qos: int, kept: bool
) -> None:
    properties = Properties(
        maximum_packet_size=100, receive_maximum=1, session_expiry_interval=100 if kept else None
    )
    client, other = enter(properties=properties), enter("o")
    client.subscribe(name)
    other.subscribe(name)
    publisher = enter("p")
    room = 100 - 2 - 2 - len(name) - 1 - (2 if qos else 0)
    for size in (room + 1, 1_000, room):
        publisher.publish(name, bytes(size), qos=qos)
        assert len(other.message().payload) == size
    assert len(client.message().payload) == room  # and the window of 1 is not held by the others
    client.nothing()


def test_a_dropped_publisher_gets_no_more(enter: Enter, name: str) -> None:
    client = enter()
    client.send(Publish(name, b"x", 1, 1), Publish(name, b"x", 2, 2))
    client.drop()
    back = enter()
    back.nothing()
