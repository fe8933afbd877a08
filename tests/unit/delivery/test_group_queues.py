"""What no member of a shared subscription can take waits for the group, on both kinds of session store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, numbered
from tests.support.held_sessions import HeldSessions

from embermq.delivery.device.settings import DeviceSettings
from embermq.mqtt.wire.packets import Connack, Puback, Publish, Subscribe, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.sessions.settings import MqttSettings

FILTER = "$share/g/t/#"


class Store:
    """Makes brokers on one kind of session store."""

    def __init__(self, sessions: HeldSessions | None) -> None:
        self.sessions = sessions

    def hand(self, **options: object) -> HandDrivenBroker:
        return HandDrivenBroker(sessions=self.sessions, **options)  # type: ignore[arg-type]


@pytest.fixture(params=["embedded", "beside"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    sessions = HeldSessions(tmp_path / "sessions.db") if request.param == "beside" else None
    yield Store(sessions)
    if sessions is not None:
        sessions.close()


@pytest.fixture
def hand(store: Store) -> HandDrivenBroker:
    return store.hand()


def away(hand: HandDrivenBroker, *names: str, qos: int = 2) -> None:
    """Members that have subscribed and gone."""
    for name in names:
        link = hand.keeps(name)
        link.subscribes(FILTER, qos=qos)
        link.drops()
    hand.settle()


def member(hand: HandDrivenBroker, name: str, *, keeps: bool = True, **options: object) -> HandLink:
    link = hand.keeps(name, **options) if keeps else hand.connects(name, **options)  # type: ignore[arg-type]
    link.subscribes(FILTER, qos=2)
    return link


def publish(hand: HandDrivenBroker, payloads: list[bytes], qos: int = 1, topic: str = "t/a") -> None:
    hand.connects("p", acknowledges=False).publishes(topic, *payloads, qos=qos)
    hand.settle()


def queued(hand: HandDrivenBroker) -> int:
    return hand.state.sessions[FILTER].queued


@pytest.mark.promise("device-14")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("comes", ["back", "new", "clean"])
def test_all_goes_to_whoever_comes_first(hand: HandDrivenBroker, qos: int, comes: str) -> None:
    away(hand, "a", "b", "c")
    publish(hand, numbered(10), qos)
    there = hand.keeps("b") if comes == "back" else member(hand, "d", keeps=comes == "new")
    hand.settle()
    assert there.payloads == numbered(10)
    assert {(message.qos, message.dup) for message in there.messages} == {(qos, False)}
    assert queued(hand) == 0
    there.drops()
    again = hand.restarted()
    assert [again.keeps(name).payloads for name in ("a", "b", "c")] == [[], [], []]


@pytest.mark.promise("device-14")
@pytest.mark.parametrize("keeps", [True, False])
def test_new_messages_come_behind_what_waits(hand: HandDrivenBroker, *, keeps: bool) -> None:
    away(hand, "a")
    publish(hand, numbered(4))
    there = member(hand, "b", keeps=keeps, receive_maximum=2, acknowledges=False)
    publish(hand, numbered(4, 4), 2)
    assert there.payloads == numbered(2)
    assert queued(hand) == 6
    there.acknowledges = True
    there.does(Puback(there.messages[0].packet_id), Puback(there.messages[1].packet_id))
    hand.settle()
    assert there.payloads == numbered(8)
    publish(hand, [b"live"])
    assert there.payloads[-1] == b"live"
    assert queued(hand) == 0


@pytest.mark.promise("device-14")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_member_that_leaves_keeps_no_more_than_it_was_sent(hand: HandDrivenBroker, qos: int) -> None:
    away(hand, "a", "b")
    publish(hand, numbered(9), qos)
    first = hand.keeps("a", receive_maximum=3, acknowledges=False)
    first.drops()
    hand.settle()
    second = hand.keeps("b")
    assert second.payloads == numbered(6, 3)
    assert hand.keeps("a").payloads == numbered(3)


@pytest.mark.promise("device-14")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("comes_back", [True, False])
def test_who_leaves_while_it_is_being_given_something(
    store: Store, qos: int, *, keeps: bool, comes_back: bool
) -> None:
    """At every step of the way: nothing is lost, and QoS 2 comes once."""
    for steps in range(12):
        hand = HandDrivenBroker() if store.sessions is None else store.hand()
        away(hand, *(("x", "a") if keeps else ("x",)))
        publish(hand, numbered(5), qos)
        leaver = hand.keeps("a", settles=False) if keeps else hand.connects("a")
        if not keeps:
            leaver.does(Subscribe(1, (Subscription(FILTER, 2),)))
        for _ in range(steps):
            hand.run()
        leaver.drops()
        got = leaver.payloads
        if keeps and comes_back:
            hand.run()
            got = [*got, *hand.keeps("a").payloads]
        other = hand.keeps("x")
        hand.settle()
        if keeps and not comes_back:
            got = [*got, *hand.keeps("a").payloads]
        found = [*got, *other.payloads]
        assert set(found) == set(numbered(5)), steps
        if keeps and qos == 1:
            assert len(found) <= 10
        for link in list(hand.links):
            link.drops()
        hand.settle()
        assert hand.state.sessions[FILTER].queued == 0
        for name in ("x", "a"):
            if name in hand.state.sessions:
                hand.broker.connecting.remove(hand.state.sessions[name], lambda: None)
        hand.settle()


@pytest.mark.promise("device-14")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("comes", ["a", "b"])
def test_a_crash_at_every_step_of_giving(tmp_path: Path, qos: int, comes: str) -> None:
    for steps in range(14):
        sessions = HeldSessions(tmp_path / f"{steps}.db")
        hand = HandDrivenBroker(sessions=sessions)
        away(hand, "a", "b")
        publish(hand, numbered(5), qos)
        hand.passes(s=1)
        sessions.held = True
        before = hand.keeps("a", settles=False)
        for _ in range(steps):
            hand.run()
            if sessions.waiting:
                sessions.release()
        hand.run()
        got = before.payloads
        again = hand.restarted()
        again.settle()
        first = again.keeps(comes)
        second = again.keeps("b" if comes == "a" else "a")
        again.settle()
        found = [*got, *first.payloads, *second.payloads]
        assert set(found) == set(numbered(5)), steps
        if qos == 2:
            fresh = [
                one.payload for one in (*before.messages, *first.messages, *second.messages) if not one.dup
            ]
            assert len(fresh) <= len(set(fresh)) or not before.messages, steps
            assert sorted([*first.payloads, *second.payloads]) == sorted({*first.payloads, *second.payloads})
        again.counts_rows(sessions)
        assert again.state.sessions[FILTER].queued == 0
        sessions.close()


@pytest.mark.promise("device-14")
def test_a_member_of_two_groups_gets_both_copies_after_a_crash(tmp_path: Path) -> None:
    for steps in range(14):
        sessions = HeldSessions(tmp_path / f"{steps}.db")
        hand = HandDrivenBroker(sessions=sessions)
        link = hand.keeps("a")
        link.subscribes("$share/g/t/#", "$share/h/t/+", qos=2)
        link.drops()
        publish(hand, numbered(3), 2)
        hand.passes(s=1)
        sessions.held = True
        before = hand.keeps("a", settles=False)
        for _ in range(steps):
            hand.run()
            if sessions.waiting:
                sessions.release()
        hand.run()
        again = hand.restarted()
        after = again.keeps("a")
        again.settle()
        fresh = [message.payload for message in (*before.messages, *after.messages) if not message.dup]
        dup = [message.payload for message in after.messages if message.dup]
        assert sorted([*fresh, *dup])[:1] == [b"0000"]
        assert sorted(after.payloads) == sorted(numbered(3) * 2) or before.messages, steps
        sessions.close()


@pytest.mark.promise("device-14")
def test_the_limit_is_that_of_one_session(store: Store) -> None:
    hand = store.hand(device=DeviceSettings(queue_limit=3))
    away(hand, "a", "b")
    publish(hand, numbered(8))
    assert queued(hand) == 3
    assert hand.state.counters.dropped_offline_limit == 5
    assert hand.keeps("b").payloads == numbered(3, 5)


@pytest.mark.promise("device-14")
def test_what_expires_goes_to_nobody(hand: HandDrivenBroker) -> None:
    away(hand, "a", "b")
    publisher = hand.connects("p")
    publisher.does(Publish("t/a", b"old", 1, 1, properties=Properties(message_expiry_interval=5)))
    publisher.does(Publish("t/a", b"new", 1, 2, properties=Properties(message_expiry_interval=50)))
    hand.settle()
    hand.passes(s=10)
    there = hand.keeps("b")
    assert there.payloads == [b"new"]
    properties = there.messages[0].properties
    assert properties is not None and properties.message_expiry_interval == 40
    assert queued(hand) == 0


@pytest.mark.promise("device-14")
@pytest.mark.parametrize("ends", ["expires", "unsubscribes", "clean"])
def test_the_queue_ends_with_the_last_member(hand: HandDrivenBroker, ends: str) -> None:
    away(hand, "a", "b")
    publish(hand, numbered(3))
    hand.connects("b", clean_start=True).drops()
    hand.settle()
    assert queued(hand) == 3
    if ends == "expires":
        hand.passes(s=86_401)
    elif ends == "clean":
        hand.connects("a", clean_start=True)
    else:
        last = hand.keeps("a", receive_maximum=1, acknowledges=False)
        last.unsubscribes(FILTER)
    hand.settle()
    assert FILTER not in hand.state.sessions
    assert member(hand, "c").payloads == []
    publish(hand, [b"later"])
    hand.passes(s=1)
    again = hand.restarted()
    assert FILTER not in again.state.sessions


@pytest.mark.promise("device-14")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_outlives_a_restart(hand: HandDrivenBroker, qos: int) -> None:
    away(hand, "a", "b")
    publish(hand, numbered(3), qos)
    again = hand.restarted()
    again.settle()
    publish(again, numbered(3, 3), qos)
    assert again.keeps("b").payloads == numbered(6)


@pytest.mark.promise("device-14")
def test_a_record_that_was_not_dispatched_before_a_crash_goes_to_the_group_once(
    hand: HandDrivenBroker,
) -> None:
    away(hand, "a", "b")
    hand.held = True
    hand.connects("p", settles=False).publishes("t/a", *numbered(4))
    hand.run()
    hand.held = False
    hand.settle()
    again = hand.restarted()
    again = again.restarted()
    again.settle()
    assert [*again.keeps("b").payloads, *again.keeps("a").payloads] == numbered(4)


def test_a_slow_member_leaves_the_rest_to_the_others(hand: HandDrivenBroker) -> None:
    slow = member(hand, "a", receive_maximum=1, acknowledges=False)
    quick = member(hand, "b", receive_maximum=1, acknowledges=False)
    publish(hand, numbered(6))
    assert len(slow.payloads) == len(quick.payloads) == 1
    quick.acknowledges = True
    quick.does(Puback(quick.messages[0].packet_id))
    hand.settle()
    assert sorted([*slow.payloads, *quick.payloads]) == numbered(6)
    assert len(slow.payloads) == 1


def test_a_member_with_qos_0_gets_what_waits_with_qos_0(hand: HandDrivenBroker) -> None:
    away(hand, "a")
    publish(hand, numbered(3))
    there = hand.connects("b")
    there.subscribes(FILTER, qos=0)
    hand.settle()
    assert [(message.payload, message.qos) for message in there.messages] == [
        (payload, 0) for payload in numbered(3)
    ]
    assert queued(hand) == 0


def test_an_operator_deletes_the_queue_of_a_group(hand: HandDrivenBroker) -> None:
    away(hand, "a")
    publish(hand, numbered(3))
    hand.broker.connecting.remove(hand.state.sessions[FILTER], lambda: None)
    hand.settle()
    publish(hand, [b"later"])
    assert hand.keeps("a").payloads == [b"later"]


def test_no_client_has_the_id_of_a_queue(hand: HandDrivenBroker) -> None:
    away(hand, "a")
    publish(hand, numbered(1))
    assert hand.connects(FILTER).last(Connack).reason_code == 0x85
    assert queued(hand) == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_sticky_by_topic(keeps: bool) -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(shared_strategy="sticky-by-topic"))
    members = [member(hand, f"m{number}", keeps=keeps) for number in range(4)]
    for topic in range(20):
        publish(hand, numbered(3), topic=f"t/{topic}")
    topics = [[message.topic for message in link.messages] for link in members]
    assert sum(map(len, topics)) == 60
    assert all(found.count(topic) == 3 for found in topics for topic in found)
    assert sum(bool(found) for found in topics) > 1
    before = {topic: at for at, found in enumerate(topics) for topic in found}
    members[0].drops()
    for topic in range(20):
        publish(hand, numbered(1), topic=f"t/{topic}")
    for name, number in before.items():
        if number:
            assert members[number].messages[-1].topic in before
            assert [m.topic for m in members[number].messages].count(name) == 4


def test_least_waiting() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(shared_strategy="least-waiting"))
    slow = member(hand, "slow", acknowledges=False)
    quick = member(hand, "quick")
    for _ in range(10):
        publish(hand, [b"1"])
    assert len(slow.payloads) == 1
    assert len(quick.payloads) == 9
