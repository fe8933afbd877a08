"""Limits of one client: how fast it publishes, how much it subscribes to."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, numbered

from embermq.mqtt.wire.packets import (
    Disconnect,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
)
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions import quotas
from embermq.sessions.quotas import kept_bytes
from embermq.sessions.settings import MqttSettings

V5, V311, V31 = ProtocolVersion.V5, ProtocolVersion.V311, ProtocolVersion.V31
QUOTA = ReasonCode.QUOTA_EXCEEDED


def limited(**settings: int) -> HandDrivenBroker:
    return HandDrivenBroker(mqtt=MqttSettings(**settings))  # type: ignore[arg-type]


def codes(link: HandLink) -> list[tuple[int, int]]:
    return [(p.packet_id, p.reason_code) for p in link.received if isinstance(p, Puback | Pubrec)]


def test_a_v5_client_that_publishes_too_fast_is_told_in_order() -> None:
    hand = limited(publish_rate_max=2)
    hears, link = hand.connects("s"), hand.connects("p")
    hears.subscribes("t", qos=1)
    link.publishes("t", *numbered(4), qos=1)
    hand.settle()
    assert codes(link) == [(1, 0), (2, 0), (3, QUOTA), (4, QUOTA)]
    assert hears.payloads == numbered(2)
    hand.passes(s=1)
    link.publishes("t", b"again", qos=1, first_id=3)
    hand.settle()
    assert codes(link)[4:] == [(3, 0)]
    assert hand.state.counters.refused_publish_rate == 2
    assert not link.closing


def test_qos_2_too_fast_holds_no_packet_id_and_a_repeat_is_answered_as_before() -> None:
    hand = limited(publish_rate_max=1)
    link = hand.connects("p")
    link.publishes("t", b"1", b"2", qos=2)
    hand.settle()
    link.does(Publish("t", b"1", 2, 1, False, True, None))
    hand.settle()
    assert codes(link) == [(1, ReasonCode.NO_MATCHING_SUBSCRIBERS), (2, QUOTA), (1, 0)]
    assert link.session is not None
    assert link.session.receiving == {1}


def test_qos_0_too_fast_is_dropped_and_counted() -> None:
    hand = limited(publish_rate_max=3)
    hears, link = hand.connects("s"), hand.connects("p")
    hears.subscribes("t", qos=0)
    link.publishes("t", *numbered(10), qos=0)
    hand.settle()
    assert hears.payloads == numbered(3)
    assert hand.state.counters.refused_publish_rate == 7


def test_refusals_count_towards_the_receive_maximum() -> None:
    hand = limited(publish_rate_max=1, receive_maximum=3)
    link = hand.connects("p")
    hand.held = True
    link.publishes("t", *numbered(4), qos=1)
    hand.settle()
    assert link.last(Disconnect).reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


@pytest.mark.parametrize("version", [V31, V311])
def test_of_a_3_x_client_everything_is_taken_and_then_nothing_for_a_while(version: ProtocolVersion) -> None:
    hand = limited(publish_rate_max=10)
    hears, link = hand.connects("s"), hand.connects("p", version=version)
    hears.subscribes("t", qos=1)
    link.publishes("t", *numbered(10), qos=1)
    assert link.throttle_ms == 0
    link.publishes("t", *numbered(10, 10), qos=1, first_id=11)
    hand.settle()
    assert hears.payloads == numbered(20)
    assert codes(link) == [(number, 0) for number in range(1, 21)]
    assert link.throttle_ms == 1_000


def test_the_limit_of_all_is_shared_and_one_that_is_within_its_own_is_refused_too() -> None:
    hand = limited(publish_rate_max=5, publish_rate_total_max=6)
    first, second = hand.connects("a"), hand.connects("b")
    first.publishes("t", *numbered(5), qos=1)
    second.publishes("t", *numbered(5), qos=1)
    hand.settle()
    assert [code == QUOTA for _, code in codes(first)] == [False] * 5
    assert [code == QUOTA for _, code in codes(second)] == [False] + [True] * 4
    hand.passes(s=1)
    second.publishes("t", *numbered(5), qos=1, first_id=10)
    hand.settle()
    assert QUOTA not in [code for _, code in codes(second)[5:]]


@pytest.mark.parametrize(("version", "code"), [(V31, 0x80), (V311, 0x80), (V5, 0x97)])
def test_subscriptions_over_the_limit_are_refused_one_by_one(version: ProtocolVersion, code: int) -> None:
    hand = limited(subscriptions_max=2)
    link = hand.connects("s", version=version)
    link.does(Subscribe(1, tuple(Subscription(text, 1) for text in ("a", "b", "c", "a", "$share/g/d"))))
    hand.settle()
    assert link.last(Suback).reason_codes == (1, 1, code, 1, code)
    link.unsubscribes("a")
    link.does(Subscribe(3, (Subscription("c", 2),)))
    hand.settle()
    assert link.last(Suback).reason_codes == (2,)
    assert hand.state.counters.refused_subscriptions == 2


def test_a_released_qos_2_message_does_not_count_again() -> None:
    hand = limited(publish_rate_max=1)
    link = hand.connects("p")
    link.publishes("t", b"1", qos=2)
    link.does(Pubrel(1))
    hand.settle()
    assert not link.closing


def test_large_retained_messages_come_in_small_packs() -> None:
    hand = HandDrivenBroker()
    publisher = hand.connects("p")
    for number in range(20):
        publisher.publishes(f"r/{number}", b"x" * 50_000, qos=1, retain=True, first_id=number + 1)
    hand.settle()
    link = hand.connects("s")
    filters = ("#", "r/#", "+/+", "r/+")
    link.does(Subscribe(1, tuple(Subscription(text, 0) for text in filters)))
    hand.run()
    first = sum(len(message.payload) for message in link.messages)
    assert 0 < first < 1_200_000
    hand.passes(s=1)
    assert len(link.messages) == 20 * len(filters)


def test_a_filter_that_is_subscribed_again_and_again_waits_once() -> None:
    hand = HandDrivenBroker()
    hand.connects("p").publishes("r", b"x", qos=1, retain=True)
    hand.settle()
    link = hand.connects("s")
    link.paused = True
    for packet_id in range(1, 1_000):
        link.does(Subscribe(packet_id, (Subscription("r", 0), Subscription("#", 0))))
        hand.settle()
    link.paused = False
    hand.passes(s=1)
    assert len(link.messages) == 2


def test_the_bytes_of_filters_have_a_limit_too_also_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "SESSION_FILTER_BYTES_MAX", 65_535)
    hand = limited()
    link = hand.keeps("s")
    long = "/".join("abcdefg" for _ in range(125))
    link.does(Subscribe(1, tuple(Subscription(f"{number:04d}/{long}", 1) for number in range(100))))
    hand.settle()
    taken = 65_535 // kept_bytes(f"0000/{long}")
    assert link.last(Suback).reason_codes == (1,) * taken + (QUOTA,) * (100 - taken)
    link.drops()
    hand.settle()
    hand = hand.restarted()
    link = hand.keeps("s")
    link.does(Subscribe(1, (Subscription(f"0100/{long}", 1), Subscription(f"0000/{long}", 0))))
    hand.settle()
    assert link.last(Suback).reason_codes == (QUOTA, 0)
    link.unsubscribes(f"0001/{long}")
    link.does(Subscribe(3, (Subscription(f"0100/{long}", 1),)))
    hand.settle()
    assert link.last(Suback).reason_codes == (1,)
