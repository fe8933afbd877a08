"""What sessions and subscriptions may take, of one user and in all."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink

from embermq.mqtt.wire.packets import Connack, Suback
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.quotas import SUBSCRIPTION_BYTES, kept_bytes
from embermq.sessions.settings import MqttSettings

QUOTA = ReasonCode.QUOTA_EXCEEDED
ONE = kept_bytes("a/+")


def limited(**settings: int) -> HandDrivenBroker:
    return HandDrivenBroker(mqtt=MqttSettings(**settings))  # type: ignore[arg-type]


def codes(*links: HandLink) -> list[int]:
    return [link.last(Connack).reason_code for link in links]


def test_one_user_may_have_so_many_kept_sessions() -> None:
    hand = limited(sessions_user_max=2)
    first, second = hand.keeps("1", user="ann"), hand.keeps("2", user="ann")
    third, other = hand.keeps("3", user="ann"), hand.keeps("4", user="bob")
    assert codes(first, second, third, other) == [0, 0, QUOTA, 0]
    said = third.last(Connack).properties
    assert said is not None
    assert said.reason_string == "the user has 2 kept sessions, which is the limit"
    assert "3" not in hand.state.sessions
    assert codes(hand.connects("3", user="ann"), hand.keeps("1", user="ann")) == [0, 0]
    assert codes(hand.keeps("5", user="ann", version=ProtocolVersion.V311)) == [3]
    assert hand.state.counters.refused_sessions_user == 2


def test_all_users_together_may_have_so_many_kept_sessions_also_after_a_restart() -> None:
    hand = limited(sessions_total_max=2)
    first, second = hand.keeps("1", user="ann"), hand.keeps("2", user="bob")
    assert codes(first, second, hand.keeps("3", user="eve")) == [0, 0, QUOTA]
    for link in (first, second):
        link.drops()
    hand.settle()
    hand = hand.restarted()
    assert codes(hand.keeps("3", user="eve")) == [QUOTA]
    assert hand.state.quotas.kept == 2
    anew = hand.connects("1", user="ann", expiry_s=60)  # a clean start, in the place of her old one
    assert codes(anew) == [0]
    anew.leaves()
    hand.passes(s=61)
    assert hand.state.quotas.kept == 1
    assert codes(hand.keeps("3", user="eve")) == [0]
    assert hand.state.counters.refused_sessions_broker == 1


def test_the_filters_of_one_user_and_of_all_have_limits() -> None:
    hand = limited(subscriptions_bytes_total_max=4 * ONE)
    first, second = hand.keeps("1", user="ann"), hand.connects("2", user="ann")
    assert first.subscribes("a/+") + second.subscribes("a/+", "b/+", "a/+") == (2, 2, QUOTA, 2)
    said = second.last(Suback).properties
    assert said is not None
    assert said.reason_string == "no room for more subscriptions of this user"
    other, third = hand.connects("3", user="bob"), hand.connects("4", user="eve")
    assert other.subscribes("a/+") + third.subscribes("a/+", "b/+") == (2, 2, QUOTA)
    counters, quotas = hand.state.counters, hand.state.quotas
    assert (counters.refused_subscriptions_user, counters.refused_subscriptions_broker) == (1, 1)
    assert quotas.filter_bytes == 4 * ONE
    first.unsubscribes("a/+")
    assert second.subscribes("c/+") == (2,)
    for link in (second, other, third):
        link.leaves()
    hand.settle()
    assert quotas.filter_bytes == 0


def test_a_session_counts_for_the_user_who_has_it() -> None:
    hand = limited(sessions_user_max=1, subscriptions_bytes_total_max=2 * ONE)
    hand.keeps("1", user="ann").subscribes("a/+")
    assert codes(hand.keeps("2", user="ann")) == [QUOTA]
    assert hand.broker.connecting.give(hand.state.sessions["1"], "bob", lambda: None)
    moved = hand.keeps("1", user="bob")
    again = hand.keeps("2", user="ann")
    assert codes(moved, again) == [0, 0]
    assert moved.subscribes("b/+") == (QUOTA,)
    assert again.subscribes("b/+") == (2,)


@pytest.mark.parametrize(
    ("topic_filter", "text_bytes"),
    [("a/+", 2 * 3), ("é/+", 2 * 3), ("中/+", 2 * 2 * 3), ("𝄞/+", 2 * 4 * 3), ("$share/g/a/+", 3 * 12)],
)
def test_filters_count_as_python_keeps_them(topic_filter: str, text_bytes: int) -> None:
    assert kept_bytes(topic_filter) == SUBSCRIPTION_BYTES + text_bytes
