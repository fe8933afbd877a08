"""The queue of a shared subscription: what nobody has acknowledged belongs to the group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, numbered
from tests.support.held_sessions import HeldSessions, table

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules_file import read_rules
from embermq.delivery.device.settings import DeviceSettings
from embermq.mqtt.wire.packets import Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel
from embermq.mqtt.wire.properties import Properties
from embermq.ports.errors import StoreFull
from embermq.sessions.settings import MqttSettings

FILTER = "$share/g/t/#"


@pytest.fixture(params=["embedded", "apart"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HeldSessions | None]:
    if request.param == "embedded":
        yield None
        return
    held = HeldSessions(tmp_path / "sessions.db")
    yield held
    held.connection.close()


@pytest.fixture
def hand(sessions: HeldSessions | None) -> HandDrivenBroker:
    return HandDrivenBroker(sessions=sessions)


def a_member(hand: HandDrivenBroker, name: str, *, qos: int = 2, acknowledges: bool = True) -> HandLink:
    link = hand.keeps(name, acknowledges=acknowledges)
    link.subscribes(FILTER, qos=qos)
    return link


def away(hand: HandDrivenBroker, *names: str, qos: int = 2) -> None:
    for name in names:
        a_member(hand, name, qos=qos).drops()
    hand.settle()


def publishes(hand: HandDrivenBroker, *payloads: bytes, topic: str = "t/1", qos: int = 1) -> None:
    hand.connects("p").publishes(topic, *payloads, qos=qos)
    hand.settle()


def checked(hand: HandDrivenBroker) -> None:
    """What is counted is what is stored."""
    hand.settle()
    if hand.sessions is not None:
        hand.counts_rows(hand.sessions)
    else:
        hand.counts_queues()


def queued(hand: HandDrivenBroker) -> int:
    return hand.state.shared_queues.queued


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("restarts", [False, True])
def test_whoever_returns_first_gets_all_in_order(hand: HandDrivenBroker, qos: int, restarts: bool) -> None:
    away(hand, "a", "b")
    publishes(hand, *numbered(10), qos=qos)
    assert queued(hand) == 10
    if restarts:
        hand = hand.restarted()
        hand.settle()
        assert queued(hand) == 10
    back = hand.keeps("b")
    assert back.payloads == numbered(10)
    assert [message.qos for message in back.messages] == [qos] * 10
    assert hand.keeps("a").payloads == []
    assert queued(hand) == 0
    checked(hand)
    hand.passes(s=1)
    again = hand.restarted()
    assert again.keeps("a").payloads == again.keeps("b").payloads == []


def test_a_window_that_is_full_leaves_the_rest_to_others(hand: HandDrivenBroker) -> None:
    away(hand, "a", "b")
    publishes(hand, *numbered(6))
    first = hand.keeps("a", receive_maximum=2, acknowledges=False)
    assert first.payloads == [b"0000", b"0001"]
    second = hand.keeps("b")
    assert second.payloads == [b"0002", b"0003", b"0004", b"0005"]
    first.does(Puback(first.messages[0].packet_id), Puback(first.messages[1].packet_id))
    checked(hand)
    assert queued(hand) == 0


def test_new_messages_go_behind_what_waits(hand: HandDrivenBroker) -> None:
    away(hand, "a")
    publishes(hand, *numbered(3))
    back = hand.keeps("a", receive_maximum=1, acknowledges=False)
    publishes(hand, b"new", b"newer")
    assert back.payloads == [b"0000"]
    for number in range(4):
        back.does(Puback(back.messages[number].packet_id))
        hand.settle()
    assert back.payloads == [*numbered(3), b"new", b"newer"]
    back.does(Puback(back.messages[4].packet_id))
    publishes(hand, b"live")
    assert back.payloads[-1] == b"live"
    checked(hand)


def test_what_waits_in_memory_keeps_its_order_with_what_is_stored(sessions: HeldSessions | None) -> None:
    hand = HandDrivenBroker(sessions=sessions, mqtt=MqttSettings(queued_messages_max=2))
    member = hand.keeps("a", receive_maximum=1, acknowledges=False)
    member.subscribes(FILTER, qos=1)
    publishes(hand, *numbered(8))
    assert member.payloads == [b"0000"]
    assert queued(hand) == 5
    hand.passes(s=1)
    assert queued(hand) == 8
    for number in range(8):
        member.does(Puback(member.messages[number].packet_id))
        hand.settle()
    assert member.payloads == numbered(8)
    checked(hand)


@pytest.mark.parametrize("passes_ms", [0, 1_000], ids=["unstored", "stored"])
@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_member_has_not_acknowledged_goes_back_to_its_place(
    hand: HandDrivenBroker, passes_ms: int, restarts: bool
) -> None:
    member = hand.keeps("a", receive_maximum=3, acknowledges=False)
    member.subscribes(FILTER, qos=1)
    away(hand, "b")
    publishes(hand, *numbered(6))
    hand.passes(ms=passes_ms)
    member.does(Puback(member.messages[1].packet_id))
    hand.settle()
    assert member.payloads == numbered(4)
    member.drops()
    hand.settle()
    if restarts:
        hand.passes(s=1)
        hand = hand.restarted()
    assert hand.keeps("b").payloads == [b"0000", b"0002", b"0003", b"0004", b"0005"]
    assert hand.keeps("a").payloads == []
    checked(hand)


def test_a_member_that_leaves_while_another_is_there(hand: HandDrivenBroker) -> None:
    away(hand, "a", "b")
    publishes(hand, *numbered(4))
    first = hand.keeps("a", acknowledges=False)
    assert first.payloads == numbered(4)
    second = hand.keeps("b")
    assert second.payloads == []
    first.does(Puback(first.messages[2].packet_id))
    first.drops()
    hand.settle()
    assert second.payloads == [b"0000", b"0001", b"0003"]
    assert not any(message.dup for message in second.messages)
    checked(hand)


def test_qos_2_in_flight_stays_with_its_session(hand: HandDrivenBroker) -> None:
    away(hand, "a", "b")
    publishes(hand, *numbered(4), qos=2)
    first = hand.keeps("a", receive_maximum=2, acknowledges=False)
    assert first.payloads == [b"0000", b"0001"]
    first.does(Pubrec(first.messages[0].packet_id))
    hand.settle()
    assert queued(hand) == 2
    first.drops()
    hand.settle()
    second = hand.keeps("b")
    assert second.payloads == [b"0002", b"0003"]
    again = hand.restarted()
    back = again.keeps("a")
    assert back.payloads == [b"0001"]
    assert [packet.packet_id for packet in back.all(Pubrel)][:1] == [first.messages[0].packet_id]
    assert again.keeps("b").payloads == []
    checked(again)


@pytest.mark.parametrize("steps", range(12))
@pytest.mark.parametrize("acknowledges", [False, True])
def test_a_crash_while_a_qos_2_message_is_given_neither_loses_nor_doubles_it(
    hand: HandDrivenBroker, sessions: HeldSessions | None, steps: int, *, acknowledges: bool
) -> None:
    """It is stored for the member, removed from the group, then sent."""
    away(hand, "a", "b")
    publishes(hand, *numbered(3), qos=2)
    hand.passes(s=1)
    hand.held = True
    if sessions is not None:
        sessions.held = True
    member = hand.keeps("a", settles=False, acknowledges=acknowledges)
    for _ in range(steps):
        hand.run()
        if sessions is not None and sessions.waiting:
            sessions.release()
        if hand.store.busy:
            hand.finish_commit()
    got = set(member.payloads)
    hand = hand.restarted()
    hand.settle()
    other = hand.keeps("b")
    back = hand.keeps("a")
    assert sorted({*got, *other.payloads, *back.payloads}) == numbered(3)
    assert not {*got, *back.payloads} & set(other.payloads)
    assert len(other.payloads + back.payloads) == len({*other.payloads, *back.payloads})
    checked(hand)


@pytest.mark.parametrize("qos", [1, 2])
def test_who_joins_when_all_others_leave_sees_what_is_decided_and_not_yet_stored(
    hand: HandDrivenBroker, qos: int
) -> None:
    """Also what was acknowledged, or given to a member, a moment ago."""
    away(hand, "a")
    publishes(hand, *numbered(4), qos=qos)
    helper = hand.connects("helper")
    member = hand.keeps("a", acknowledges=False, receive_maximum=1)
    assert member.payloads == [b"0000"]
    packet_id = member.messages[0].packet_id
    if qos == 1:
        member.does(Puback(packet_id))
    else:
        member.does(Pubrec(packet_id, 0x80))
    hand.state.shared_queues.give()
    member.drops()
    helper.subscribes(FILTER)
    hand.settle()
    back = hand.keeps("a")
    assert b"0000" not in helper.payloads
    assert sorted(helper.payloads + back.payloads) == numbered(4)[1:]
    checked(hand)


def test_a_qos_2_message_is_not_sent_before_the_group_lets_go_of_it(tmp_path: Path) -> None:
    held = HeldSessions(tmp_path / "sessions.db")
    hand = HandDrivenBroker(sessions=held)
    away(hand, "a", "b")
    publishes(hand, b"1", qos=2)
    member = hand.keeps("a", receive_maximum=1, acknowledges=False)
    assert member.payloads == [b"1"]
    name = hand.state.shared_queues.open.copy().pop().session.generation
    assert [row for row in held.rows(name) if row[1] != 3] == []
    held.connection.close()


def test_the_limit_of_one_session_holds_for_the_group(sessions: HeldSessions | None) -> None:
    hand = HandDrivenBroker(sessions=sessions, device=DeviceSettings(queue_limit=5))
    away(hand, "a", "b")
    publishes(hand, *numbered(9))
    assert queued(hand) == 5
    assert hand.state.counters.dropped_offline_limit == 4
    assert hand.keeps("b").payloads == numbered(9)[4:]
    checked(hand)


def test_the_limit_spares_what_is_in_flight(sessions: HeldSessions | None) -> None:
    hand = HandDrivenBroker(sessions=sessions, device=DeviceSettings(queue_limit=4))
    away(hand, "a")
    publishes(hand, *numbered(4))
    back = hand.keeps("a", receive_maximum=2, acknowledges=False)
    publishes(hand, b"a", b"b")
    hand.settle()
    back.acknowledges = True
    back.does(*(Puback(message.packet_id) for message in back.messages))
    hand.settle()
    assert back.payloads[:2] == numbered(2)
    assert back.payloads[-2:] == [b"a", b"b"]
    checked(hand)


def test_messages_expire_in_the_group(hand: HandDrivenBroker) -> None:
    away(hand, "a")
    publisher = hand.connects("p")
    publisher.does(Publish("t/1", b"old", 1, 1, properties=Properties(message_expiry_interval=5)))
    publisher.does(Publish("t/1", b"new", 1, 2, properties=Properties(message_expiry_interval=50)))
    hand.settle()
    hand.passes(s=10)
    back = hand.keeps("a")
    assert back.payloads == [b"new"]
    properties = back.messages[0].properties
    assert properties is not None and properties.message_expiry_interval == 40
    checked(hand)


def test_each_member_gets_its_own_qos_and_identifier(hand: HandDrivenBroker) -> None:
    for name, qos in (("zero", 0), ("one", 1), ("two", 2)):
        link = hand.keeps(name)
        link.subscribes(FILTER, qos=qos, identifier=qos + 1)
        link.drops()
    publishes(hand, b"1", qos=2)
    one = hand.keeps("one")
    assert [(message.payload, message.qos) for message in one.messages] == [(b"1", 1)]
    properties = one.messages[0].properties
    assert properties is not None and properties.subscription_identifiers == (2,)
    one.drops()
    publishes(hand, b"2", qos=2)
    zero = hand.keeps("zero")
    assert [(message.payload, message.qos) for message in zero.messages] == [(b"2", 0)]
    assert hand.keeps("two").payloads == []
    checked(hand)


def test_a_client_without_a_kept_session_helps(hand: HandDrivenBroker) -> None:
    away(hand, "a")
    publishes(hand, *numbered(2))
    publishes(hand, b"two", qos=2)
    helper = hand.connects("helper")
    helper.subscribes(FILTER)
    assert helper.payloads == [*numbered(2), b"two"]
    helper.acknowledges = False
    publishes(hand, b"three")
    assert helper.payloads[-1] == b"three"
    helper.drops()
    hand.settle()
    assert hand.keeps("a").payloads == [b"three"]
    checked(hand)


def test_the_group_ends_with_its_last_member(hand: HandDrivenBroker) -> None:
    away(hand, "a", "b")
    publishes(hand, *numbered(3))
    hand.connects("a")
    assert queued(hand) == 3
    hand.keeps("b", acknowledges=False, receive_maximum=1).unsubscribes(FILTER)
    assert hand.state.shared_queues.open == set()
    again = hand.restarted()
    again.settle()
    if again.sessions is not None:
        assert [row[1] for row in table(again.sessions, "session")] == ["b"]
    back = again.keeps("b")
    assert back.payloads == [b"0000"]
    back.subscribes(FILTER)
    assert back.payloads == [b"0000"]
    checked(again)


def test_who_unsubscribes_still_gets_what_was_under_way(hand: HandDrivenBroker) -> None:
    away(hand, "a", "b")
    publishes(hand, *numbered(3))
    first = hand.keeps("a", acknowledges=False, receive_maximum=1)
    first.unsubscribes(FILTER)
    first.drops()
    hand.settle()
    hand = hand.restarted()
    assert hand.keeps("b").payloads == [b"0001", b"0002"]
    back = hand.keeps("a")
    assert [(message.payload, message.dup) for message in back.messages] == [(b"0000", True)]
    checked(hand)


def test_what_was_not_stored_before_a_crash_is_owed_to_the_group_once(hand: HandDrivenBroker) -> None:
    away(hand, "a", "b")
    publisher = hand.connects("p")
    hand.settle()
    hand.held = True
    publisher.publishes("t/1", *numbered(9))
    hand.run()
    hand.finish_commit()
    again = hand.restarted()
    again.settle()
    assert queued(again) == 9
    again = again.restarted()
    assert again.keeps("b").payloads == numbered(9)
    assert again.keeps("a").payloads == []
    checked(again)


def test_what_a_member_had_in_flight_before_a_crash_is_the_groups(hand: HandDrivenBroker) -> None:
    a_member(hand, "a", acknowledges=False)
    away(hand, "b")
    publishes(hand, *numbered(3))
    again = hand.restarted()
    assert again.keeps("b").payloads == numbered(3)
    assert again.keeps("a").payloads == []


def test_a_topic_that_only_an_absent_member_may_receive_holds_up_no_other(
    sessions: HeldSessions | None,
) -> None:
    text = '[[rule]]\ndeny = "receive"\ntopics = "t/secret"\nclient_id = "b"\n'
    rules = RuleSet(read_rules(text, "r.toml"), no_match_allows=True)
    hand = HandDrivenBroker(sessions=sessions, rules=rules)
    away(hand, "a", "b")
    publishes(hand, b"secret", topic="t/secret")
    publishes(hand, b"open", topic="t/open")
    back = hand.keeps("b")
    assert back.payloads == [b"open"]
    publishes(hand, b"next", topic="t/open")
    assert back.payloads == [b"open", b"next"]
    assert hand.keeps("a").payloads == [b"secret"]
    checked(hand)


def test_a_change_of_the_rules_lets_messages_go(hand: HandDrivenBroker) -> None:
    text = '[[rule]]\ndeny = "receive"\ntopics = "t/secret"\nclient_id = "b"\n'
    hand.state.rules = RuleSet(read_rules(text, "r.toml"), no_match_allows=True)
    away(hand, "a", "b")
    publishes(hand, b"secret", topic="t/secret")
    back = hand.keeps("b")
    assert back.payloads == []
    hand.broker.authorize(RuleSet(read_rules("", "r.toml"), no_match_allows=True))
    hand.settle()
    assert back.payloads == [b"secret"]


def test_while_the_disk_is_full_qos_2_waits() -> None:
    hand = HandDrivenBroker()
    away(hand, "a", "b")
    publishes(hand, b"1", b"2")
    publishes(hand, b"two", qos=2)
    publishes(hand, b"3")
    hand.full = StoreFull("no room")
    hand.connects("p").publishes("t/1", b"refused")
    hand.settle()
    back = hand.keeps("a")
    assert back.payloads == [b"1", b"2"]
    hand.full = None
    hand.passes(s=5)
    assert back.payloads == [b"1", b"2", b"3", b"two"] or back.payloads == [b"1", b"2", b"two", b"3"]
    checked(hand)


@pytest.mark.parametrize("strategy", ["sticky-by-topic", "least-waiting", "round-robin"])
def test_strategies(sessions: HeldSessions | None, strategy: str) -> None:
    hand = HandDrivenBroker(sessions=sessions, mqtt=MqttSettings(shared_strategy=strategy))  # type: ignore[arg-type]
    members = [a_member(hand, name, qos=1, acknowledges=False) for name in ("a", "b")]
    for number in range(3):
        publishes(hand, b"x", topic="t/1")
        publishes(hand, b"y", topic=f"t/{number}/other")
    shares = sorted(len(member.payloads) for member in members)
    owners = [index for index, member in enumerate(members) if any(m.topic == "t/1" for m in member.messages)]
    if strategy == "sticky-by-topic":
        assert len(owners) == 1
        members[owners[0]].drops()
        hand.settle()
        publishes(hand, b"z", topic="t/1")
        assert members[1 - owners[0]].payloads[-1] == b"z"
    else:
        assert shares == [3, 3]


def test_least_waiting_is_the_one_with_the_fewest_in_flight() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(shared_strategy="least-waiting"))
    busy = a_member(hand, "busy", qos=1, acknowledges=False)
    quick = a_member(hand, "quick", qos=1)
    for number in range(9):
        publishes(hand, b"%d" % number)
    assert len(busy.payloads) <= 1
    assert len(busy.payloads) + len(quick.payloads) == 9


def test_a_client_cannot_take_the_name_of_a_group(hand: HandDrivenBroker) -> None:
    link = hand.connects("$share/g/t")
    assert link.last(Connack).reason_code == 0x85


def test_a_member_that_acknowledged_does_not_see_it_again_after_all_left(hand: HandDrivenBroker) -> None:
    """The store still shows what was acknowledged a moment ago."""
    away(hand, "a", "b")
    publishes(hand, *numbered(4))
    member = hand.keeps("a", acknowledges=False, receive_maximum=2)
    member.does(Puback(member.messages[0].packet_id))
    member.drops()
    other = hand.keeps("b")
    hand.settle()
    assert other.payloads == numbered(4)[1:]
    checked(hand)


def test_rows_of_members_from_before_are_theirs(hand: HandDrivenBroker) -> None:
    """A copy that a session has had stored by a shared subscription is delivered to it."""
    away(hand, "a")
    publishes(hand, b"1", qos=2)
    taken = hand.keeps("a", acknowledges=False)
    assert taken.payloads == [b"1"]
    taken.drops()
    hand.settle()
    back = hand.keeps("a")
    assert [(message.payload, message.dup) for message in back.messages] == [(b"1", True)]
    assert back.all(Pubrel)
    assert not back.all(Pubcomp)
    checked(hand)
