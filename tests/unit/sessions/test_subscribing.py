"""SUBSCRIBE and UNSUBSCRIBE, retained messages, overlapping and shared subscriptions, No Local."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, numbered

from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import (
    Disconnect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreFull

V5, V311, V31 = ProtocolVersion.V5, ProtocolVersion.V311, ProtocolVersion.V31


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


@pytest.fixture(params=["direct", "kept"])
def subscriber(hand: HandDrivenBroker, request: pytest.FixtureRequest) -> HandLink:
    """A client of either kind."""
    return hand.connects("s") if request.param == "direct" else hand.keeps("s")


@pytest.fixture
def publisher(hand: HandDrivenBroker) -> HandLink:
    link = hand.connects("p")
    link.releases = True
    return link


def seen(link: HandLink) -> list[tuple[str, bytes, int, bool]]:
    return [(message.topic, message.payload, message.qos, message.retain) for message in link.messages]


@pytest.mark.parametrize(("published", "granted"), list(itertools.product((0, 1, 2), (0, 1, 2))))
def test_the_lower_qos_counts(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink, published: int, granted: int
) -> None:
    assert subscriber.subscribes("t", qos=granted) == (granted,)
    publisher.publishes("t", b"x", qos=published)
    hand.settle()
    assert seen(subscriber) == [("t", b"x", min(published, granted), False)]


def test_codes_come_in_order_and_bad_filters_harm_nobody(
    hand: HandDrivenBroker, subscriber: HandLink
) -> None:
    assert subscriber.subscribes("a", "$share//x", "b", "/".join("x" * 500), qos=1) == (1, 0x8F, 1, 0x8F)
    old = hand.connects("old", version=V311)
    assert old.subscribes("a", "$share/g+/x", qos=0) == (0, 0x80)


@pytest.mark.parametrize("kept", [True, False])
def test_suback_of_a_kept_session_waits_for_its_commit(hand: HandDrivenBroker, kept: bool) -> None:
    link = hand.keeps("s") if kept else hand.connects("s")
    hand.held = True
    link.does(Subscribe(1, (Subscription("t", 1),)))
    hand.run()
    assert bool(link.all(Suback)) is not kept
    hand.held = False
    hand.settle()
    assert link.all(Suback)


def test_unsubscribe_ends_and_says_what_there_was(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink
) -> None:
    subscriber.subscribes("a", "b/#")
    subscriber.unsubscribes("b/#", "c")
    assert subscriber.last(Unsuback).reason_codes == (0, 0x11)
    publisher.publishes("a", b"1")
    publisher.publishes("b/x", b"2")
    hand.settle()
    assert subscriber.payloads == [b"1"]


def test_a_new_subscription_replaces_the_old(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink
) -> None:
    subscriber.subscribes("t", qos=2, identifier=1)
    subscriber.subscribes("t", qos=0, identifier=2)
    publisher.publishes("t", b"x")
    hand.settle()
    (message,) = subscriber.messages
    assert message.qos == 0
    assert message.properties is not None and message.properties.subscription_identifiers == (2,)


def test_overlapping_subscriptions_are_one_copy_with_all_identifiers(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink
) -> None:
    subscriber.subscribes("a/b", qos=0, identifier=3)
    subscriber.subscribes("a/+", qos=1, identifier=1, retain_as_published=True)
    subscriber.subscribes("#", qos=2)
    publisher.publishes("a/b", b"x", qos=2, retain=True)
    hand.settle()
    (message,) = subscriber.messages
    assert (message.qos, message.retain) == (2, True)
    assert message.properties is not None and message.properties.subscription_identifiers == (1, 3)


def test_subscriptions_changed_while_messages_are_on_their_way(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink
) -> None:
    subscriber.subscribes("t", qos=1)
    hand.held = True
    publisher.publishes("t", b"1")
    hand.run()
    subscriber.does(Subscribe(5, (Subscription("t", 0), Subscription("u", 1))))
    publisher.publishes("u", b"2", first_id=2)
    hand.run()
    hand.held = False
    hand.settle()
    subscriber.unsubscribes("t", "u")
    publisher.publishes("t", b"3", first_id=3)
    hand.settle()
    assert subscriber.payloads == [b"1", b"2"]


@pytest.mark.promise("device-5")
def test_a_subscription_matches_only_what_comes_after_it(hand: HandDrivenBroker) -> None:
    """Also when the records around it are read again after a crash."""
    publisher, old = hand.connects("p"), hand.keeps("old", acknowledges=False)
    old.subscribes("t", qos=1)
    publisher.publishes("t", b"before")
    hand.settle()
    new = hand.keeps("new", acknowledges=False)
    hand.held = True
    publisher.publishes("t", b"beside", first_id=2)
    new.does(Subscribe(1, (Subscription("t", 1),)))
    publisher.publishes("t", b"after", first_id=3)
    hand.run()
    hand.finish_commit()
    hand = hand.restarted()
    assert hand.keeps("old").payloads == [b"before", b"beside", b"after"]
    assert hand.keeps("new").payloads == [b"after"]


def test_a_subscription_that_counted_on_refused_records_loses_nothing(hand: HandDrivenBroker) -> None:
    publisher, subscriber = hand.connects("p"), hand.keeps("s", acknowledges=False)
    hand.held = True
    publisher.publishes("t", *numbered(50))
    hand.run()
    subscriber.does(Subscribe(1, (Subscription("t", 1),)))
    hand.failures = [StoreFull("no room")]
    hand.finish_commit()
    hand.held = False
    hand.settle()
    subscriber.subscribes("t", qos=1)
    publisher.publishes("t", b"owed")
    hand.settle()
    assert publisher.last(Puback).reason_code == 0
    assert hand.restarted().keeps("s").payloads == [b"owed"]


# No Local


def test_no_local(hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink) -> None:
    subscriber.subscribes("t", no_local=True, qos=1)
    subscriber.publishes("t", b"own", retain=True)
    hand.settle()
    publisher.publishes("t", b"other")
    hand.settle()
    assert subscriber.payloads == [b"other"]
    subscriber.subscribes("t", no_local=True, qos=1)
    assert subscriber.payloads == [b"other"]
    subscriber.does(Subscribe(9, (Subscription("$share/g/t", 1, True),)))
    hand.settle()
    assert subscriber.last(Disconnect).reason_code == 0x82


# Retained


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_newest_retained_message_is_there_for_new_subscriptions(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink, qos: int
) -> None:
    publisher.publishes("a/b", b"old", qos=qos, retain=True)
    publisher.publishes("a/b", b"new", qos=qos, retain=True, first_id=2)
    publisher.publishes("a/b", b"live", qos=qos, first_id=3)
    hand.settle()
    subscriber.subscribes("a/+", "$share/g/a/#", "b")
    assert seen(subscriber) == [("a/b", b"new", qos, True)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_empty_payload_clears_and_is_forwarded(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink, qos: int
) -> None:
    live = hand.connects("live")
    live.subscribes("t")
    publisher.publishes("t", b"x", qos=qos, retain=True)
    publisher.publishes("t", b"", qos=qos, retain=True, first_id=2)
    hand.settle()
    assert live.payloads == [b"x", b""]
    subscriber.subscribes("t")
    assert subscriber.messages == []
    assert hand.store.retained == {}
    assert len(hand.state.retained) == 0


@pytest.mark.promise("repositories-5a")
def test_retained_messages_survive_a_crash_as_they_were_committed(hand: HandDrivenBroker) -> None:
    publisher = hand.connects("p")
    publisher.publishes("a", b"1", retain=True)
    publisher.publishes("b", b"1", qos=0, retain=True)
    hand.settle()
    hand.held = True
    publisher.publishes("a", b"lost", retain=True)
    publisher.publishes("b", b"", retain=True)
    hand.run()
    hand = hand.restarted()
    subscriber = hand.connects("s")
    subscriber.subscribes("#")
    assert sorted(seen(subscriber)) == [("a", b"1", 1, True), ("b", b"1", 0, True)]


@pytest.mark.promise("repositories-5a")
def test_a_refused_retained_message_changes_nothing(hand: HandDrivenBroker, publisher: HandLink) -> None:
    publisher.publishes("t", b"kept", retain=True)
    hand.settle()
    hand.failures = [StoreFull("no room")]
    publisher.publishes("t", b"refused", retain=True)
    hand.settle()
    late = hand.connects("late")
    late.subscribes("t")
    assert late.payloads == [b"kept"]


@pytest.mark.promise("repositories-5a")
def test_a_retained_message_that_is_being_committed_is_not_missed(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink
) -> None:
    publisher.publishes("t", b"old", retain=True)
    hand.settle()
    hand.held = True
    publisher.publishes("t", b"new", retain=True)
    hand.run()
    subscriber.does(Subscribe(1, (Subscription("t", 1),)))
    hand.run()
    hand.held = False
    hand.settle()
    assert seen(subscriber) == [("t", b"new", 1, True)]


def test_a_retained_message_behind_the_subscription_comes_once(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink
) -> None:
    hand.held = True
    publisher.publishes("t", b"before", retain=True)
    subscriber.does(Subscribe(1, (Subscription("t", 1),)))
    publisher.publishes("t", b"after", retain=True, first_id=2)
    hand.run()
    hand.held = False
    hand.settle()
    assert subscriber.payloads.count(b"after") == 1


@pytest.mark.parametrize(("handling", "counts"), [(0, [1, 2]), (1, [1, 1]), (2, [0, 0])])
def test_retain_handling(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink, handling: int, counts: list[int]
) -> None:
    publisher.publishes("t", b"x", retain=True)
    hand.settle()
    for count in counts:
        subscriber.subscribes("t", retain_handling=handling)
        assert len(subscriber.messages) == count


def test_retain_as_published(hand: HandDrivenBroker, publisher: HandLink) -> None:
    plain, as_published = hand.connects("plain"), hand.connects("published")
    plain.subscribes("t")
    as_published.subscribes("t", retain_as_published=True)
    publisher.publishes("t", b"1", retain=True)
    publisher.publishes("t", b"2", first_id=2)
    hand.settle()
    assert [message.retain for message in plain.messages] == [False, False]
    assert [message.retain for message in as_published.messages] == [True, False]


@pytest.mark.promise("device-7")
def test_an_expired_retained_message_is_not_sent_and_the_rest_is_told(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink
) -> None:
    for topic, interval_s in (("t/short", 10), ("t/long", 100)):
        expiry = Properties(message_expiry_interval=interval_s)
        publisher.does(Publish(topic, b"x", 1, 1, True, properties=expiry))
        hand.settle()
    hand.passes(s=30)
    subscriber.subscribes("t/+")
    (message,) = subscriber.messages
    assert message.topic == "t/long"
    assert message.properties is not None and message.properties.message_expiry_interval == 70


@pytest.mark.parametrize("qos", [0, pytest.param(1, marks=pytest.mark.in_faults), 2])
def test_very_many_retained_messages_all_arrive_in_steps(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink, qos: int
) -> None:
    count = 3_000
    for number in range(count):
        publisher.publishes(f"r/{number}", b"x", qos=1, retain=True)
        if number % 1_000 == 999:
            hand.settle()
    subscriber.does(Subscribe(1, (Subscription("r/#", qos),)))
    hand.run()
    assert len(subscriber.messages) < count / 2
    hand.passes(s=5)
    assert Counter(message.topic for message in subscriber.messages) == Counter(
        f"r/{number}" for number in range(count)
    )


def test_retained_messages_wait_while_the_socket_takes_nothing(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink
) -> None:
    for number in range(600):
        publisher.publishes(f"r/{number}", b"x", retain=True)
    hand.settle()
    subscriber.paused = True
    subscriber.does(Subscribe(1, (Subscription("r/#", 0),)))
    hand.passes(s=1)
    assert subscriber.messages == []
    subscriber.paused = False
    hand.passes(s=1)
    assert len(subscriber.messages) == 600


def test_retained_messages_stop_with_the_subscription(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink
) -> None:
    for number in range(2_000):
        publisher.publishes(f"r/{number}", b"x", retain=True)
    hand.settle()
    subscriber.does(Subscribe(1, (Subscription("r/#", 0),)))
    hand.run()
    subscriber.unsubscribes("r/#")
    before = len(subscriber.messages)
    hand.passes(s=1)
    assert len(subscriber.messages) == before < 2_000


# Shared subscriptions


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_in_turn(
    hand: HandDrivenBroker, publisher: HandLink, qos: int
) -> None:
    members = [hand.keeps(f"m{number}") for number in range(3)]
    for member in members:
        member.subscribes("$share/g/t/#")
    other, plain = hand.connects("other"), hand.connects("plain")
    other.subscribes("$share/h/t/#")
    plain.subscribes("t/+")
    for number in range(30):
        publisher.publishes(f"t/{number}", b"%d" % number, qos=qos, first_id=number + 1)
        hand.settle()
    assert [len(member.messages) for member in members] == [10, 10, 10]
    assert len(other.messages) == len(plain.messages) == 30


def test_a_member_that_is_away_is_passed_over(hand: HandDrivenBroker, publisher: HandLink) -> None:
    here, away = hand.keeps("here"), hand.keeps("away")
    for member in (here, away):
        member.subscribes("$share/g/t")
    away.drops()
    publisher.publishes("t", *numbered(10))
    hand.settle()
    assert here.payloads == numbered(10)
    here.drops()
    publisher.publishes("t", b"nobody is here")
    hand.settle()
    assert [*hand.keeps("here").payloads, *hand.keeps("away").payloads] == [b"nobody is here"]


def test_shared_and_plain_subscriptions_of_one_client_are_two_copies(
    hand: HandDrivenBroker, subscriber: HandLink, publisher: HandLink
) -> None:
    subscriber.subscribes("t", "$share/g/t")
    publisher.publishes("t", b"x")
    hand.settle()
    assert subscriber.payloads == [b"x", b"x"]
    subscriber.unsubscribes("$share/g/t")
    publisher.publishes("t", b"y", first_id=2)
    hand.settle()
    assert subscriber.payloads[2:] == [b"y"]


def test_the_same_group_on_two_filters_is_two_subscriptions(
    hand: HandDrivenBroker, publisher: HandLink
) -> None:
    one, two = hand.connects("one"), hand.connects("two")
    one.subscribes("$share/g/t")
    two.subscribes("$share/g/+")
    publisher.publishes("t", b"x")
    hand.settle()
    assert one.payloads == two.payloads == [b"x"]


def test_wildcards_do_not_reach_into_dollar_topics(hand: HandDrivenBroker, subscriber: HandLink) -> None:
    publisher = hand.connects("p")
    subscriber.subscribes("#", "+/x")
    publisher.publishes("$other/x", b"no", retain=True)
    hand.settle()
    assert subscriber.messages == []
    subscriber.subscribes("$other/#")
    assert subscriber.payloads == [b"no"]


def test_an_application_with_very_many_identifiers_does_not_disturb_publishers(
    hand: HandDrivenBroker, publisher: HandLink
) -> None:
    application = hand.keeps("app", client_type=ClientType.APPLICATION)
    for number, levels in enumerate(itertools.islice(itertools.product("a+", repeat=9), 300)):
        application.does(
            Subscribe(
                1, (Subscription("/".join(levels), 1),), Properties(subscription_identifiers=(number + 1,))
            )
        )
    hand.settle()
    publisher.publishes("/".join("a" * 9), b"x")
    hand.settle()
    assert publisher.last(Puback).reason_code == 0
