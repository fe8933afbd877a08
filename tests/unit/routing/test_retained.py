"""Retained messages: their end, what overtakes them on their way to a new subscription, and turns among many."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules_file import read_rules
from embermq.formats.log_record import decode_record, publisher_in
from embermq.mqtt.wire.packets import Puback, Publish, Suback, Subscribe, Subscription, Will
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.errors import StoreError
from embermq.routing.retained import LEVEL_BYTES, STALE_MAX
from embermq.sessions.retained_replay import TICK_STEPS
from embermq.sessions.settings import MqttSettings


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


@pytest.fixture
def publisher(hand: HandDrivenBroker) -> HandLink:
    return hand.connects("p")


def retains(publisher: HandLink, topic: str, payload: bytes = b"x", *, expiry_s: int | None = None) -> None:
    properties = None if expiry_s is None else Properties(message_expiry_interval=expiry_s)
    publisher.does(Publish(topic, payload, 1, 1, True, False, properties))


def test_what_expires_is_removed_from_memory_and_store(hand: HandDrivenBroker, publisher: HandLink) -> None:
    for topic, expiry_s in (("b", 20), ("a", 10), ("c", None), ("a", 5), ("d", 5)):
        retains(publisher, topic, expiry_s=expiry_s)
    retains(publisher, "d")
    hand.settle()
    hand.passes(s=5)
    assert sorted(hand.store.retained) == ["b", "c", "d"]
    hand.passes(s=14)
    assert len(hand.state.retained) == 3
    hand.passes(s=1)
    assert sorted(hand.store.retained) == ["c", "d"]
    assert (len(hand.state.retained), hand.state.counters.retained_expired) == (2, 2)
    assert not hand.state.timers.next_ms


def test_ends_are_remembered_until_nobody_brings_anything_older(
    hand: HandDrivenBroker, publisher: HandLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    retained = hand.state.retained
    retained.remembers_ends = True
    for topic in ("a", "b", "c"):
        for payload in (b"x", b""):
            retains(publisher, topic, payload)
            hand.settle()
        hand.passes(s=1)
    assert (list(retained.ends), sorted(hand.store.retained), len(retained)) == (
        ["a", "b", "c"],
        ["a", "b", "c"],
        0,
    )
    retained.forget_ends(hand.state.tick.date_ms - 2_000)
    hand.settle()
    assert list(retained.ends) == list(hand.store.retained) == ["b", "c"]
    monkeypatch.setattr("embermq.routing.retained.ENDS_MAX", 2)
    retains(publisher, "d", b"")
    hand.settle()
    assert list(retained.ends) == list(hand.store.retained) == ["c", "d"]


def test_what_replaces_an_expired_message_in_the_same_tick_stays(
    hand: HandDrivenBroker, publisher: HandLink
) -> None:
    retains(publisher, "a", expiry_s=5)
    hand.settle()
    hand.held = True
    retains(publisher, "a", b"new")
    hand.run()
    hand.passes(s=6)
    hand.finish_commit()
    hand.held = False
    hand.settle()
    kept = hand.state.retained.get("a")
    assert kept is not None and hand.store.retained["a"] == kept
    assert len(hand.state.retained) == 1


def test_a_removal_that_could_not_be_stored_is_tried_again(
    hand: HandDrivenBroker, publisher: HandLink
) -> None:
    retains(publisher, "a", expiry_s=5)
    hand.settle()
    hand.failures.append(StoreError("no"))
    hand.passes(s=6)
    assert hand.store.retained == {}


def test_what_expired_while_the_broker_was_down_is_removed(
    hand: HandDrivenBroker, publisher: HandLink
) -> None:
    retains(publisher, "a", expiry_s=5)
    retains(publisher, "b", expiry_s=50)
    hand.settle()
    again = hand.restarted(after_ms=6_000)
    assert len(again.state.retained) == 1
    again.settle()
    assert sorted(again.store.retained) == ["b"]
    again.passes(s=50)
    assert again.store.retained == {}


def test_deadlines_of_what_was_replaced_do_not_gather(hand: HandDrivenBroker, publisher: HandLink) -> None:
    for number in range(3 * STALE_MAX):
        retains(publisher, "a", b"%d" % number, expiry_s=1_000 + number)
        hand.settle()
    assert len(hand.state.retained._deadlines) <= STALE_MAX + 3
    hand.passes(s=5_000)
    assert hand.store.retained == {}


@pytest.mark.parametrize(
    ("payload", "is_stored"),
    [
        (b"new", True),
        (b"", False),
        pytest.param(b"new", False, marks=pytest.mark.in_faults),
        pytest.param(b"", True, marks=pytest.mark.in_faults),
    ],
)
def test_what_is_being_replaced_is_not_sent_behind_its_successor(
    hand: HandDrivenBroker, publisher: HandLink, payload: bytes, is_stored: bool
) -> None:
    """A subscription gets the successor at once, before it is stored."""
    for number in range(TICK_STEPS):
        publisher.publishes(f"t/{number}", b"old", qos=0, retain=True)
    hand.settle()
    subscriber = hand.connects("s")
    subscriber.does(Subscribe(1, (Subscription("t/#", 0),)))
    hand.run()
    assert 0 < len(subscriber.messages) < TICK_STEPS
    heard = {message.topic for message in subscriber.messages}
    topic = next(f"t/{number}" for number in range(TICK_STEPS) if f"t/{number}" not in heard)
    hand.held = True
    publisher.publishes(topic, payload, retain=True)
    for _ in range(100):  # the commit takes its time
        hand.passes(ms=1)
    hand.held = False
    if not is_stored:
        hand.failures.append(StoreError("no"))
    hand.finish_commit()
    hand.passes(s=2)
    said = [message.payload for message in subscriber.messages if message.topic == topic]
    assert said == ([payload] if is_stored else [payload, b"old"])
    assert len({message.topic for message in subscriber.messages}) == TICK_STEPS


RETAINED = 200


def test_many_who_ask_at_once_share_the_tick(hand: HandDrivenBroker, publisher: HandLink) -> None:
    for number in range(RETAINED):
        publisher.publishes(f"t/{number}", b"x", retain=True)
    hand.settle()
    asking = [hand.connects(f"s{number}") for number in range(20)]
    for link in asking:
        link.does(Subscribe(1, (Subscription("#", 0),)))
    in_a_tick = 2 * TICK_STEPS // 16
    sent: list[int] = []
    while not sent or sent[-1] < RETAINED * len(asking):
        hand.run()
        hand.state.tick.now_ms += 1
        sent.append(sum(len(link.messages) for link in asking))
        assert sent[-1] - sum(sent[-2:-1]) <= in_a_tick
        assert len(sent) < 1_000, "all are sent in time"
    assert len(sent) > RETAINED * len(asking) // in_a_tick > 5
    assert [len(link.messages) for link in asking] == [RETAINED] * len(asking)
    assert all(len(link.all(Suback)) == 1 for link in asking)


LIMIT_BYTES = 1024 * 1024


@pytest.fixture
def small() -> HandDrivenBroker:
    """A broker with little room for retained messages."""
    return HandDrivenBroker(mqtt=MqttSettings(retained_bytes_max=LIMIT_BYTES))


def fill(hand: HandDrivenBroker, publisher: HandLink, *, payload: bytes = b"x" * 20_000) -> int:
    """Retain until one is refused; returns how many were not."""
    for number in range(LIMIT_BYTES):
        retains(publisher, f"fill/{number}", payload)
        hand.settle()
        answer = publisher.last(Puback)
        if answer.reason_code >= 0x80:
            assert answer.reason_code == ReasonCode.QUOTA_EXCEEDED
            return number
    raise AssertionError("there is no limit")


def test_retained_messages_have_room_for_so_many_and_no_more(small: HandDrivenBroker) -> None:
    publisher = small.connects("p")
    kept = fill(small, publisher)
    assert kept == LIMIT_BYTES // (20_000 + 2 * LEVEL_BYTES + 60)  # what a record adds is less than 60
    assert len(small.state.retained) == kept == len(small.store.retained)
    assert small.state.counters.refused_retained == 1
    assert len(small.restarted().state.retained) == kept


def test_what_is_replaced_or_deleted_makes_no_trouble_and_makes_room(small: HandDrivenBroker) -> None:
    publisher = small.connects("p")
    kept = fill(small, publisher)
    for payload in (b"y" * 20_000, b""):
        retains(publisher, "fill/0", payload)
        small.settle()
        assert publisher.last(Puback).reason_code < 0x80
    retains(publisher, "another/topic", b"x" * 19_000)
    small.settle()
    assert publisher.last(Puback).reason_code < 0x80
    assert len(small.state.retained) == kept


def test_properties_and_levels_count(small: HandDrivenBroker) -> None:
    publisher = small.connects("p")
    kept = fill(small, publisher)
    large = Properties(user_properties=(("name", "v" * 60_000),))
    publisher.does(Publish("fill/0", b"x", 1, 1, True, False, large))
    small.settle()
    assert publisher.last(Puback).reason_code == ReasonCode.QUOTA_EXCEEDED
    retains(publisher, "fill/0", b"")
    retains(publisher, "/".join("a topic of very many levels, which cost more than it says"), b"x" * 10_000)
    small.settle()
    deleted, refused = publisher.all(Puback)[-2:]
    assert deleted.reason_code < 0x80 and refused.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert len(small.state.retained) == kept - 1


def test_a_will_past_the_limit_goes_out_without_being_retained(small: HandDrivenBroker) -> None:
    publisher, watcher = small.connects("p"), small.connects("w")
    watcher.subscribes("last/words")
    kept = fill(small, publisher)
    leaving = small.connects("l", will=Will("last/words", b"w" * 20_000, 1, True, None))
    leaving.drops()
    small.settle()
    assert watcher.payloads == [b"w" * 20_000]
    assert (len(small.state.retained), small.state.counters.refused_retained) == (kept, 2)


EVERYTHING = '[[rule]]\nallow = "all"\n'
WITHOUT_ANN = '[[rule]]\ndeny = "publish"\nuser = "ann"\ntopics = "a/#"\n' + EVERYTHING
WITHOUT_CERTIFICATE = '[[rule]]\ndeny = "publish"\ncertificate = "CN=ann"\n' + EVERYTHING


def rules(text: str) -> RuleSet:
    return RuleSet(read_rules(text, "r"), no_match_allows=False)


def with_retained(rule_set: RuleSet | None) -> HandDrivenBroker:
    """ann and bob have retained one message each, and ann one by her will."""
    hand = HandDrivenBroker(rules=rule_set)
    will = Will("a/will", b"will", 1, True)
    ann = hand.connects("c-1", user="ann", certificate="CN=ann", will=will)
    ann.publishes("a/ann", b"ann", qos=1, retain=True)
    hand.connects("c-2", user="bob").publishes("a/bob", b"bob", qos=0, retain=True)
    hand.settle()
    ann.drops()
    hand.settle()
    return hand


def found(hand: HandDrivenBroker, client_id: str) -> list[bytes]:
    reader = hand.connects(client_id, user="reader")
    reader.subscribes("#")
    hand.settle()
    return sorted(reader.payloads)


def test_what_a_publisher_may_not_say_any_more_is_left_out() -> None:
    hand = with_retained(rules(EVERYTHING))
    assert found(hand, "r1") == [b"ann", b"bob", b"will"]
    hand.broker.authorize(rules(WITHOUT_ANN))
    assert found(hand, "r2") == [b"bob"]
    assert hand.state.counters.deliveries_denied == 2
    hand.broker.authorize(rules(WITHOUT_CERTIFICATE))
    assert found(hand, "r3") == [b"bob"]
    hand.broker.authorize(rules(EVERYTHING))
    assert found(hand, "r4") == [b"ann", b"bob", b"will"]


def test_nor_of_a_publisher_whom_nobody_knows() -> None:
    hand = with_retained(None)
    row = hand.state.retained.get("a/ann")
    assert row is not None and publisher_in(decode_record(row.record)) is None, (
        "nothing is stored without rules"
    )
    hand.broker.authorize(rules(WITHOUT_ANN))
    assert found(hand, "r") == [b"ann", b"bob", b"will"]
