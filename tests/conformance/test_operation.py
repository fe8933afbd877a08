"""Chapter 4: delivery again, order, topics, shared subscriptions."""

from __future__ import annotations

import pytest
from tests.conformance.clause import V5, V311, in_3x_and_5, in_311_and_5, of_5, of_31, of_311
from tests.conformance.conftest import Enter
from tests.conformance.wire_client import WireClient

from embermq.mqtt.wire.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion


@of_5("4.4.0-1", "4.6.0-5", "4.6.0-1")
@of_311("4.4.0-1", "4.6.0-6", "4.6.0-1")
@in_3x_and_5
def test_what_is_unacknowledged_is_sent_again_in_its_order(
    enter: Enter, name: str, version: ProtocolVersion
) -> None:
    client, publisher = enter("s", version, clean=False, expiry=100), enter("p")
    client.subscribe(name)
    for number in range(1, 7):
        publisher.publish(name, b"%d" % number, qos=1 + number % 2)
    first: dict[bytes, int] = {}
    while len(first) < 6:
        message = client.message(answers=False)
        first[message.payload] = message.packet_id
    client.send(Puback(first[b"2"]))  # in the middle
    client.send(Pubrec(first[b"3"]))
    assert client.expect(Pubrel).packet_id == first[b"3"]
    client.drop()
    publisher.publish(name, b"7", qos=1)
    client = enter("s", version, clean=False, expiry=100)
    again: list[tuple[bytes, int]] = []
    while len(again) < 6:
        packet = client.next()
        if isinstance(packet, Pubrel):
            again.append((b"3", packet.packet_id))
            continue
        assert isinstance(packet, Publish)
        assert packet.dup is (packet.payload != b"7")
        again.append((packet.payload, packet.packet_id))
    assert [payload for payload, _ in again][-1] == b"7"
    assert {payload: packet_id for payload, packet_id in again if payload != b"7"} == {
        payload: packet_id for payload, packet_id in first.items() if payload != b"2"
    }
    ones = [payload for payload, _ in again if payload in (b"4", b"6")]
    twos = [payload for payload, _ in again if payload in (b"1", b"5")]
    assert (ones, twos) == ([b"4", b"6"], [b"1", b"5"])


@of_5("4.5.0-1", "4.1.0-1")
@of_311("4.5.0-1", "4.1.0-1")
@in_3x_and_5
def test_every_session_with_a_subscription_gets_the_message(
    enter: Enter, name: str, version: ProtocolVersion
) -> None:
    here = enter("h", version)
    here.subscribe(name)
    away = enter("a", version, clean=False, expiry=100)
    away.subscribe(f"{name}/#")
    away.leave()
    publisher = enter("p", version)
    for qos in (0, 1, 2):
        publisher.publish(name, b"%d" % qos, qos=qos)
        assert here.message().payload == b"%d" % qos
    back = enter("a", version, clean=False, expiry=100)
    assert [message.payload for message in back.messages(2)] == [b"1", b"2"]
    back.nothing()


@of_5("4.6.0-2", "4.6.0-3", "4.6.0-4", "4.6.0-5", "4.6.0-6")
@of_311("4.6.0-2", "4.6.0-3", "4.6.0-4", "4.6.0-5", "4.6.0-6")
@in_3x_and_5
@pytest.mark.parametrize("kept", [False, True])
def test_order(enter: Enter, name: str, version: ProtocolVersion, kept: bool) -> None:
    """Messages of one client, topic and QoS arrive in their order; so do the acknowledgements of the broker."""
    client = enter("s", version, clean=not kept, expiry=100 if kept else 0)
    client.subscribe(name)
    publisher = enter("p", version)
    total = 240
    publisher.send(*(Publish(name, b"%d" % n, n % 3, n if n % 3 else 0) for n in range(1, total + 1)))
    acknowledged: dict[type, list[int]] = {Puback: [], Pubrec: []}
    for _ in range(total // 3 * 2):
        packet = publisher.next()
        assert isinstance(packet, Puback | Pubrec)
        acknowledged[type(packet)].append(packet.packet_id)
    assert acknowledged[Puback] == list(range(1, total, 3))
    assert acknowledged[Pubrec] == list(range(2, total, 3))
    publisher.send(*(Pubrel(n) for n in range(2, total, 3)))
    for number in range(2, total, 3):
        assert publisher.expect(Pubcomp).packet_id == number
    arrived = [(message.qos, int(message.payload)) for message in client.messages(total)]
    for qos in (0, 1, 2):
        expected = [number for number in range(1, total + 1) if number % 3 == qos]
        assert [number for found, number in arrived if found == qos] == expected


@of_5("4.7.1-1", "4.7.1-2", "4.7.2-1", "4.7.3-4", "4.7.0-1")
@of_311("4.7.1-1", "4.7.1-2", "4.7.1-3", "4.7.2-1", "4.7.3-4")
@in_311_and_5
@pytest.mark.parametrize(
    ("topic_filter", "matching", "others"),
    [
        ("#", ["a", "a/b", "/", "/a"], ["$a", "$SYS-like/b"]),
        ("+", ["a"], ["a/b", "/a", "$a"]),
        ("+/+", ["/a", "a/b", "a/", "/"], ["a", "a/b/c", "$a/b"]),
        ("a/#", ["a", "a/b", "a/b/c", "a/"], ["ab", "A/b", "b/a"]),
        ("a/+/c", ["a/b/c", "a//c"], ["a/c", "a/b/b/c", "a/b/c/"]),
        ("a/+", ["a/b", "a/"], ["a", "a/b/c"]),
        ("/+", ["/a", "/"], ["a", "//"]),
        ("$a/#", ["$a", "$a/b"], ["a", "a/b"]),
        ("$a/+", ["$a/b"], ["$a", "a/b"]),
        ("A", ["A"], ["a", " A", "A ", "A/"]),
        ("e\u0301", ["e\u0301"], ["\u00e9"]),
        ("a b", ["a b"], ["a%20b", "ab"]),
    ],
)
def test_filters_match(
    enter: Enter, version: ProtocolVersion, topic_filter: str, matching: list[str], others: list[str]
) -> None:
    client, publisher = enter(version=version), enter("p")
    client.subscribe(topic_filter, qos=0, handling=2 if version is V5 else 0)
    mark = client.client_id.encode()
    for topic in [*others, *matching]:
        publisher.publish(topic, mark, qos=0)
    publisher.ping()
    found: list[str] = []
    while len(found) < len(matching):
        message = client.message()
        if message.payload == mark:  # other tests publish too
            found.append(message.topic)
    assert found == matching
    client.unsubscribe(topic_filter)


@of_5("4.7.3-1", "4.7.3-2", "4.7.3-3")
@of_311("4.7.3-1", "4.7.3-2", "4.7.3-3")
@in_311_and_5
def test_lengths_of_topics(enter: Enter, name: str, version: ProtocolVersion) -> None:
    """One character is enough; what is longer than this broker takes is refused with its reason."""
    client = enter(version=version)
    assert client.subscribe("/", "x", qos=0) == (0, 0)
    client.publish(name[0], qos=0)
    longest = name + "x" * (4_096 - len(name))
    assert client.subscribe(longest, longest + "x", qos=0) == (0, 0x8F if version is V5 else 0x80)
    client.unsubscribe("/", "x")
    client.publish(longest, b"x", qos=0)
    message = client.message()
    assert message.topic == longest
    client.send(Publish("y" * 65_535, b"x", 0, 0))
    client.nothing()
    client.send(Publish("y" * 65_535, b"x", 1, 99))
    if version is V5:
        assert client.expect(Puback).reason_code == 0x90
    else:
        client.end()


# Shared subscriptions


def members(enter: Enter, name: str, count: int = 2, expiry: int = 0) -> list[WireClient]:
    found = [enter(f"m{number}", expiry=expiry) for number in range(count)]
    for member in found:
        assert member.subscribe(f"$share/g/{name}") == (2,)
    return found


@of_5("4.8.2-1", "4.8.2-3")
def test_one_member_gets_each_message_at_its_own_qos(enter: Enter, name: str) -> None:
    publisher = enter("p")
    clients = [enter(f"m{qos}") for qos in (0, 1, 2)]
    for qos, client in enumerate(clients):
        client.subscribe(f"$share/g/{name}", qos=qos)
    for _ in range(3):
        publisher.publish(name, qos=2)
    for qos, client in enumerate(clients):
        assert client.message().qos == qos  # in turn
        client.nothing(0.05)


@of_5("4.8.2-1", "4.8.2-2")
def test_two_groups_and_the_plain_filter_are_three_subscriptions(enter: Enter, name: str) -> None:
    client, other = enter(), enter("o")
    client.subscribe(f"$share/g/{name}", qos=1, identifier=1)
    client.subscribe(f"$share/h/{name}", qos=1, identifier=2)
    client.subscribe(name, qos=1, identifier=3)
    other.subscribe(f"$share/g/{name}", qos=1)
    publisher = enter("p")
    for _ in range(2):
        publisher.publish(name, qos=1)
    found = sorted(
        message.properties.subscription_identifiers
        for message in client.messages(5)
        if message.properties is not None
    )
    assert found == [(1,), (2,), (2,), (3,), (3,)]
    other.message()
    client.nothing(0.05)
    assert client.unsubscribe(f"$share/h/{name}", f"$share/x/{name}", name) == (0, 0x11, 0)


@in_3x_and_5
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_group_and_the_plain_filters_are_subscriptions_of_their_own(
    enter: Enter, name: str, version: ProtocolVersion, kept: bool, qos: int
) -> None:
    """Plain filters that overlap give one copy; each shared subscription gives one more, to whose turn it is."""
    client = enter("c", version, clean=not kept, expiry=100 if kept else 0)
    identified = version is V5
    for number, (topic_filter, granted) in enumerate(
        [(f"{name}/a", 1), (f"{name}/#", 2), (f"$share/g/{name}/a", 2), (f"$share/h/{name}/+", 1)], 1
    ):
        client.subscribe(topic_filter, qos=granted, identifier=number if identified else 0)
    other = enter("o", version, clean=not kept, expiry=100 if kept else 0)
    other.subscribe(f"$share/h/{name}/+", qos=2, identifier=9 if identified else 0)
    publisher = enter("p")
    of_plain = (min(qos, 2), (1, 2) if identified else ())
    of_g = (min(qos, 2), (3,) if identified else ())
    of_h = (min(qos, 1), (4,) if identified else ())
    at_other = (min(qos, 2), (9,) if identified else ())
    found: list[tuple[int, tuple[int, ...]]] = []
    for number in range(4):
        publisher.publish(f"{name}/a", b"%d" % number, qos=qos)
    for message in [*client.messages(10), *other.messages(2)]:
        identifiers = message.properties.subscription_identifiers if message.properties is not None else ()
        found.append((message.qos, tuple(sorted(identifiers))))
    assert sorted(found) == sorted([of_plain, of_g] * 4 + [of_h, at_other] * 2)
    client.nothing()
    other.nothing()
    client.unsubscribe(f"$share/h/{name}/+", f"{name}/#")
    publisher.publish(f"{name}/a", b"last", qos=qos)
    publisher.publish(f"{name}/b", b"for h", qos=qos)
    assert [message.payload for message in client.messages(2)] == [b"last"] * 2
    assert sorted(message.payload for message in other.messages(2)) == [b"for h", b"last"]
    client.nothing()


@pytest.mark.parametrize("qos", [1, 2])
def test_copies_of_each_subscription_wait_for_who_is_away(enter: Enter, name: str, qos: int) -> None:
    client = enter("c", clean=False, expiry=100)
    client.subscribe(name, identifier=1)
    client.subscribe(f"$share/g/{name}", identifier=2)
    client.subscribe(f"$share/h/{name}", identifier=3)
    client.drop()
    publisher = enter("p")
    for number in range(3):
        publisher.publish(name, b"%d" % number, qos=qos)
    back = enter("c", clean=False, expiry=100)
    found = []
    for message in back.messages(9):
        assert message.properties is not None
        found.append((message.payload, message.properties.subscription_identifiers))
    assert sorted(found) == [(b"%d" % number, (which,)) for number in range(3) for which in (1, 2, 3)]
    back.nothing()


def test_the_same_group_name_with_another_filter_is_another_subscription(enter: Enter, name: str) -> None:
    one, two = enter("1"), enter("2")
    one.subscribe(f"$share/g/{name}/a")
    two.subscribe(f"$share/g/{name}/+")
    publisher = enter("p")
    for qos in (0, 1, 2):
        publisher.publish(f"{name}/a", b"%d" % qos, qos=qos)
        assert one.message().payload == two.message().payload == b"%d" % qos
    one.nothing()
    two.nothing()


def test_a_shared_subscription_finds_nothing_retained(enter: Enter, name: str) -> None:
    enter("p").publish(name, retain=True)
    client = enter()
    client.subscribe(f"$share/g/{name}")
    client.nothing()


def test_members_that_have_no_room_are_passed_over(enter: Enter, name: str) -> None:
    full = enter("f", properties=Properties(receive_maximum=1))
    free = enter("g")
    for member in (full, free):
        member.subscribe(f"$share/g/{name}", qos=1)
    publisher = enter("p")
    for number in range(6):
        publisher.publish(name, b"%d" % number, qos=1)
    full.message(answers=False)
    assert len(free.messages(5)) == 5
    full.nothing(0.05)


@pytest.mark.parametrize("kept", [False, True])
def test_a_member_that_leaves_hands_qos_1_over(enter: Enter, name: str, kept: bool) -> None:
    """[MQTT 5.0, 4.8.2]"""
    leaver = enter("m0", expiry=100 if kept else 0)
    leaver.subscribe(f"$share/g/{name}")
    publisher = enter("p")
    for number in range(3):
        publisher.publish(name, b"%d" % number, qos=1)
    held = [leaver.message(answers=False) for _ in range(3)]
    other = enter("m1", expiry=100 if kept else 0)
    other.subscribe(f"$share/g/{name}")
    leaver.send(Puback(held[0].packet_id))
    leaver.ping()
    leaver.drop()
    assert [(message.payload, message.dup) for message in other.messages(2)] == [(b"1", False), (b"2", False)]
    enter("m0", clean=False, expiry=0).nothing(0.05)


@of_5("4.8.2-4", "4.8.2-5")
def test_qos_2_stays_with_the_member_that_has_it(enter: Enter, name: str) -> None:
    (leaver,) = members(enter, name, 1, expiry=100)
    publisher = enter("p")
    publisher.publish(name, b"1", qos=2)
    held = leaver.message(answers=False)
    other = enter("other")
    other.subscribe(f"$share/g/{name}")
    leaver.drop()
    other.nothing(0.05)
    back = enter("m0", clean=False, expiry=100)
    again = back.message(answers=False)
    assert (again.payload, again.packet_id, again.dup) == (b"1", held.packet_id, True)
    back.leave()
    enter("m0").leave()  # a clean start ends the session
    other.nothing()


@of_5("4.8.2-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_member_refuses_goes_to_nobody(enter: Enter, name: str, qos: int) -> None:
    (refuser,) = members(enter, name, 1, expiry=100)
    enter("p").publish(name, b"1", qos=qos)
    message = refuser.message(answers=False)
    other = enter("other")
    other.subscribe(f"$share/g/{name}")
    refuser.send((Puback if qos == 1 else Pubrec)(message.packet_id, 0x80))
    refuser.ping()
    refuser.drop()
    other.nothing()
    enter("m0", clean=False, expiry=0).nothing(0.05)


def test_a_group_that_is_away_keeps_its_messages(enter: Enter, name: str) -> None:
    clients = members(enter, name, 2, expiry=100)
    for client in clients:
        client.leave()
    publisher = enter("p")
    for number in range(6):
        publisher.publish(name, b"%d" % number, qos=1 + number % 2)
    back = enter("m1", clean=False, expiry=100)
    assert [message.payload for message in back.messages(6)] == [b"%d" % number for number in range(6)]
    enter("m0", clean=False, expiry=100).nothing(0.05)


@of_31("4.1 flows")
@of_311("4.3.1-1", "4.3.2-1", "4.3.2-2", "4.3.3-1", "4.3.3-2")
@in_3x_and_5
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_flows_of_all_versions_together(
    enter: Enter, name: str, version: ProtocolVersion, qos: int
) -> None:
    readers = [enter("a", V311), enter("b", V5), enter("c", version)]
    for reader in readers:
        reader.subscribe(name)
    enter("p", version).publish(name, b"x", qos=qos)
    for reader in readers:
        assert reader.message().qos == qos
