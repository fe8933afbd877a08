"""What is passed over in the queue of a shared subscription, and what more than one may be thought to have."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, numbered
from tests.support.held_sessions import HeldSessions
from tests.support.split_sessions import SplitSessions

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules_file import read_rules
from embermq.delivery.device.settings import DeviceSettings
from embermq.mqtt.wire.packets import Puback, Publish
from embermq.ports.errors import StoreFull
from embermq.sessions.settings import MqttSettings

FILTER = "$share/g/t/#"
NO_RECEIVING = '[[rule]]\ndeny = "receive"\nclient_id = "m"\ntopics = "t/secret"\n'


@pytest.fixture(params=["embedded", "beside"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HeldSessions | None]:
    """Of a broker on each kind of session store."""
    found = HeldSessions(tmp_path / "sessions.db") if request.param == "beside" else None
    yield found
    if found is not None:
        found.close()


def rules(text: str) -> RuleSet:
    return RuleSet(read_rules(text, "r.toml"), no_match_allows=True)


def away(hand: HandDrivenBroker, name: str, qos: int = 2) -> None:
    """A member that has subscribed and gone."""
    link = hand.keeps(name)
    link.subscribes(FILTER, qos=qos)
    link.drops()
    hand.settle()


def member(hand: HandDrivenBroker, name: str, **options: object) -> HandLink:
    link = hand.keeps(name, **options)
    link.subscribes(FILTER, qos=2)
    hand.settle()
    return link


def publish(hand: HandDrivenBroker, payloads: list[bytes], topic: str = "t/a", qos: int = 1) -> None:
    hand.connects("p", acknowledges=False).publishes(topic, *payloads, qos=qos)
    hand.settle()


def acknowledges(hand: HandDrivenBroker, link: HandLink, *messages: Publish) -> None:
    link.does(*(Puback(message.packet_id) for message in messages))
    hand.settle()


def pages(
    hand: HandDrivenBroker, sessions: HeldSessions | None, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Told of each page that is read from now on: behind which place."""
    queue, found = sessions or hand.queue, list[int]()
    read = queue.page

    def counted(generation: int, after_seq: int, *rest: object, **options: object) -> None:
        found.append(after_seq)
        read(generation, after_seq, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(hand.device.requests, "_queue", queue)
    monkeypatch.setattr(queue, "page", counted)
    return found


def test_what_was_passed_over_comes_when_rights_are_given(sessions: HeldSessions | None) -> None:
    hand = HandDrivenBroker(sessions=sessions, rules=rules(NO_RECEIVING))
    away(hand, "x")
    publish(hand, [b"secret"], "t/secret")
    link = member(hand, "m")
    assert link.payloads == []
    publish(hand, [b"plain"])
    assert link.payloads == [b"plain"]
    hand.broker.authorize(rules(""))
    hand.settle()
    assert link.payloads == [b"plain", b"secret"]
    assert not hand.state.sessions[FILTER].queued


@pytest.mark.parametrize("qos", [1, 2])
def test_who_unsubscribes_while_it_is_given_something_has_it_alone_after_a_crash(
    tmp_path: Path, qos: int
) -> None:
    """Whoever is stored as having been sent it has it, whatever of that is stored."""
    for steps, stored in product(range(7), range(10)):
        store = HeldSessions(tmp_path / f"{steps}-{stored}.db")
        hand = HandDrivenBroker(sessions=store)
        away(hand, "x")
        away(hand, "m")
        publish(hand, numbered(3), qos=qos)
        hand.passes(s=1)
        store.held = True
        leaver = hand.keeps("m", settles=False, acknowledges=False)
        for step in range(12):
            if step == steps:
                leaver.unsubscribes(FILTER)
            hand.run()
            if step < stored and store.waiting:
                store.release()
        again = hand.restarted()
        again.settle()
        found = [*again.keeps("m").payloads, *again.keeps("x").payloads]
        assert found == numbered(3), (steps, stored)
        again.counts_rows(store)
        store.close()


def test_the_session_that_left_a_group_has_what_it_was_sent_after_a_crash(
    sessions: HeldSessions | None,
) -> None:
    hand = HandDrivenBroker(sessions=sessions)
    away(hand, "x")
    link = member(hand, "m", acknowledges=False)
    publish(hand, numbered(2), qos=2)
    hand.run()
    assert link.payloads == numbered(2)
    link.unsubscribes(FILTER)
    hand.settle()
    again = hand.restarted()
    again.settle()
    assert [*again.keeps("m").payloads, *again.keeps("x").payloads] == numbered(2)


def test_who_leaves_before_it_is_sent_something_and_another_member_do_not_both_have_it(
    tmp_path: Path,
) -> None:
    """Each session is on a server of its own, and the broker dies when one of them has not stored that it is over."""
    store = SplitSessions(tmp_path / "sessions.db", Random(0))
    hand = HandDrivenBroker(sessions=store)
    links = {name: member(hand, name) for name in ("a", "b")}
    publisher = hand.connects("p", acknowledges=False)
    hand.passes(s=1)
    store.held = True
    publisher.publishes("t/a", *numbered(1), qos=2)
    for _ in range(3):
        hand.run()
    (leaver,) = [name for name in links if hand.state.sessions[name].unsent]
    links[leaver].drops()
    left = hand.state.sessions[leaver].generation
    hand.run()
    assert store.step_of(left), "it is stored as sent"
    others = [one.generation for one in hand.state.sessions.loaded if one.generation != left]
    for _ in range(20):
        for owner in others:
            store.step_of(owner)
        hand.run()
    again = hand.restarted()
    again.settle()
    got = [*links["a"].payloads, *links["b"].payloads]
    for name in links:
        got += again.keeps(name).payloads
    again.settle()
    assert got == numbered(1)
    store.close()


def test_what_is_given_on_a_full_disk_and_acknowledged_is_settled_once() -> None:
    came_back = 0
    for steps in range(8):
        hand = HandDrivenBroker()
        away(hand, "x")
        away(hand, "m")
        publish(hand, numbered(3))
        link = hand.keeps("m", settles=False)
        for _ in range(steps):
            hand.run()
        hand.full = StoreFull("no room")
        hand.run()
        hand.connects("p", settles=False).publishes("elsewhere", b"refused")
        hand.settle()
        link.drops()
        hand.settle()
        back = hand.keeps("m")
        came_back += back.payloads == numbered(3)
        back.drops()
        hand.settle()
        hand.full = None
        hand.settle()
        hand.counts_queues()
        found = [*link.payloads, *back.payloads, *hand.keeps("m").payloads, *hand.keeps("x").payloads]
        assert set(found) == set(numbered(3)), steps
        assert hand.state.sessions[FILTER].queued == 0, steps
        hand.counts_queues()
    assert came_back, "in no round the messages were being stored when the disk was full"


def test_a_kept_member_of_qos_0_does_not_keep_the_others_from_what_a_crash_took(
    sessions: HeldSessions | None,
) -> None:
    hand = HandDrivenBroker(sessions=sessions)
    away(hand, "zero", qos=0)
    away(hand, "x")
    hand.held = True
    hand.connects("p", settles=False).publishes("t/a", *numbered(2))
    hand.run()
    hand.store.commit()
    again = hand.restarted()
    again.settle()
    assert again.keeps("x").payloads == numbered(2)


def test_a_full_member_costs_no_page_for_each_acknowledgement(
    sessions: HeldSessions | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = HandDrivenBroker(sessions=sessions)
    away(hand, "x")
    publish(hand, numbered(150))
    read = pages(hand, sessions, monkeypatch)
    link = member(hand, "m", receive_maximum=10, acknowledges=False)
    for at in range(150):
        acknowledges(hand, link, link.messages[at])
        assert len(link.payloads) == min(150, at + 11), "an acknowledgement brings the next message at once"
    assert link.payloads == numbered(150)
    assert len(read) <= 5


@pytest.fixture
def sticky(sessions: HeldSessions | None) -> HandDrivenBroker:
    return HandDrivenBroker(sessions=sessions, mqtt=MqttSettings(shared_strategy="sticky-by-topic"))


def owners(hand: HandDrivenBroker, *links: HandLink) -> list[str]:
    """For each member a topic that is its own."""
    found: dict[int, str] = {}
    for number in range(50):
        publish(hand, [b"probe"], f"t/{number}")
        for at, link in enumerate(links):
            for message in link.messages:
                found.setdefault(at, message.topic)
    return [found[at] for at in range(len(links))]


def by_topic(link: HandLink, topic: str) -> list[bytes]:
    return [one.payload for one in link.messages if one.topic == topic and one.payload != b"probe"]


def test_a_member_that_takes_nothing_holds_up_its_own_topics_alone(
    sticky: HandDrivenBroker, sessions: HeldSessions | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = sticky
    slow, quick = (member(hand, name, receive_maximum=4) for name in ("slow", "quick"))
    of_slow, of_quick = owners(hand, slow, quick)
    slow.acknowledges = False
    publish(hand, numbered(500), of_slow)
    publish(hand, numbered(300), of_quick)
    assert by_topic(slow, of_slow) == numbered(4)
    assert by_topic(quick, of_quick) == numbered(300)
    publish(hand, numbered(300, 300), of_quick)
    assert by_topic(quick, of_quick) == numbered(600)
    read = pages(hand, sessions, monkeypatch)
    slow.acknowledges = True
    acknowledges(hand, slow, *slow.messages[-4:])
    assert by_topic(slow, of_slow) == numbered(500)
    assert len(read) <= 260  # half a window for each reading of the front
    assert hand.state.sessions[FILTER].queued == 0


def test_the_topics_of_a_member_that_leaves_go_to_the_others_in_order(sticky: HandDrivenBroker) -> None:
    hand = sticky
    slow, quick = (member(hand, name, receive_maximum=4) for name in ("slow", "quick"))
    of_slow, of_quick = owners(hand, slow, quick)
    slow.acknowledges = False
    for number in range(40):
        publish(hand, [b"%04d" % number], of_slow)
        publish(hand, [b"%04d" % number], of_quick)
    assert by_topic(quick, of_quick) == numbered(40)
    slow.drops()
    hand.settle()
    assert sorted(by_topic(quick, of_slow)) == numbered(40)  # what was sent is sent again, last
    unsent = [payload for payload in by_topic(quick, of_slow) if payload not in numbered(4)]
    assert unsent == numbered(36, 4)


def test_each_of_several_full_members_goes_on_by_itself(sticky: HandDrivenBroker) -> None:
    hand = sticky
    links = [member(hand, f"m{number}", receive_maximum=4) for number in range(4)]
    topics = owners(hand, *links)
    for link in links[:3]:
        link.acknowledges = False
    for number in range(60):
        for topic in topics:
            publish(hand, [b"%04d" % number], topic)
    assert [len(by_topic(link, topic)) for link, topic in zip(links, topics, strict=True)] == [4, 4, 4, 60]
    for link, topic in list(zip(links, topics, strict=True))[2::-1]:
        link.acknowledges = True
        acknowledges(hand, link, *link.messages[-4:])
        assert by_topic(link, topic) == numbered(60)
    assert hand.state.sessions[FILTER].queued == 0


def test_a_member_with_room_goes_on_when_another_one_used_up_its_own_first(sticky: HandDrivenBroker) -> None:
    """The queue is read for the other one alone, whose messages are in front, and it acknowledges nothing any more."""
    hand = sticky
    links = [member(hand, name, receive_maximum=4) for name in ("first", "second", "quick")]
    first, second, _ = links
    of_first, of_second, _ = owners(hand, *links)
    first.acknowledges = second.acknowledges = False
    publish(hand, numbered(12), of_first)
    publish(hand, numbered(8), of_second)
    held = second.messages[-4:]
    acknowledges(hand, second, *held[:1])  # room, and less than half of its window
    acknowledges(hand, first, *first.messages[-4:-2])
    acknowledges(hand, second, *held[1:])
    assert by_topic(second, of_second) == numbered(8)
    assert by_topic(first, of_first) == numbered(6)


def test_what_comes_while_the_last_that_was_passed_over_is_given_is_not_left(
    sticky: HandDrivenBroker,
) -> None:
    """A member is full by what it was given, and nothing waits for it any more."""
    hand = sticky
    slow, quick = (member(hand, name, receive_maximum=4) for name in ("slow", "quick"))
    of_slow, of_quick = owners(hand, slow, quick)
    slow.acknowledges = False
    publish(hand, numbered(8), of_slow)
    hand.connects("q", acknowledges=False).publishes(of_quick, *numbered(2), qos=1)
    acknowledges(hand, slow, *slow.messages[-4:])
    assert by_topic(slow, of_slow) == numbered(8)
    assert by_topic(quick, of_quick) == numbered(2)


def test_a_member_that_gets_room_while_a_page_is_read_is_given_what_was_passed_over(tmp_path: Path) -> None:
    """At whatever step of the store: nothing else comes that would have the queue read once more."""
    for steps in range(8):
        store = HeldSessions(tmp_path / f"{steps}.db")
        hand = HandDrivenBroker(sessions=store, mqtt=MqttSettings(shared_strategy="sticky-by-topic"))
        slow, quick = (member(hand, name, receive_maximum=4) for name in ("slow", "quick"))
        of_slow, of_quick = owners(hand, slow, quick)
        slow.acknowledges = False
        publish(hand, numbered(6), of_slow)
        store.held = True
        hand.connects("q", acknowledges=False).publishes(of_quick, b"other", qos=1)
        for _ in range(steps):
            if store.waiting:
                store.release()
            hand.run()
        slow.does(*(Puback(message.packet_id) for message in slow.messages[-4:]))
        hand.run()
        store.held = False
        hand.settle()
        assert by_topic(slow, of_slow) == numbered(6), steps
        store.close()


def test_the_limit_drops_the_oldest_that_was_passed_over(sessions: HeldSessions | None) -> None:
    hand = HandDrivenBroker(
        sessions=sessions,
        device=DeviceSettings(queue_limit=10),
        mqtt=MqttSettings(shared_strategy="sticky-by-topic"),
    )
    slow, quick = (member(hand, name, receive_maximum=1) for name in ("slow", "quick"))
    of_slow, of_quick = owners(hand, slow, quick)
    slow.acknowledges = False
    publish(hand, numbered(1), of_slow)
    for number in range(1, 31):
        publish(hand, [b"%04d" % number], of_slow)
        publish(hand, [b"%04d" % number], of_quick)
    assert by_topic(quick, of_quick)[-1] == b"0030"
    assert hand.state.sessions[FILTER].queued == 9  # each of the other member's had a place for a moment
    slow.acknowledges = True
    acknowledges(hand, slow, slow.messages[-1])
    assert by_topic(slow, of_slow) == [b"0000", *numbered(9, 22)]
    assert hand.state.sessions[FILTER].queued == 0
    assert hand.state.counters.dropped_offline_limit == 21
