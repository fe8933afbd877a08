"""Shared subscriptions when a member leaves: who gets what it had not acknowledged."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink

from embermq.delivery.device.requests import PAGE_MESSAGES
from embermq.mqtt.wire.packets import Puback, Publish, Pubrec
from embermq.mqtt.wire.properties import Properties
from embermq.sessions.settings import MqttSettings

FILTER = "$share/g/t"


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


def a_member(hand: HandDrivenBroker, name: str, *, keeps: bool, qos: int = 2, **options: object) -> HandLink:
    link = hand.keeps(name, **options) if keeps else hand.connects(name, **options)  # type: ignore[arg-type]
    link.subscribes(FILTER, qos=qos)
    return link


@pytest.mark.parametrize("keeps", [False, True], ids=["direct", "kept"])
@pytest.mark.parametrize("other_keeps", [False, True], ids=["to-direct", "to-kept"])
def test_qos_1_goes_to_another_member(hand: HandDrivenBroker, keeps: bool, other_keeps: bool) -> None:
    leaver = a_member(hand, "a", keeps=keeps, acknowledges=False)
    publisher = hand.connects("p")
    publisher.publishes("t", b"1", b"2", b"3")
    hand.settle()
    other = a_member(hand, "b", keeps=other_keeps)
    leaver.does(Puback(1))
    leaver.drops()
    hand.settle()
    assert other.payloads == [b"2", b"3"]
    assert not any(message.dup for message in other.messages)
    hand.passes(s=1)
    if keeps:
        assert hand.keeps("a").payloads == []
    assert other.payloads == [b"2", b"3"]


def test_qos_1_stays_with_a_kept_session_while_nobody_else_is_there(hand: HandDrivenBroker) -> None:
    leaver = a_member(hand, "a", keeps=True, acknowledges=False)
    away = a_member(hand, "b", keeps=True)
    away.drops()
    hand.connects("p").publishes("t", b"1")
    hand.settle()
    leaver.drops()
    hand.settle()
    assert hand.keeps("b").payloads == []
    assert hand.keeps("a").payloads == [b"1"]


def test_qos_2_in_flight_stays_with_its_session(hand: HandDrivenBroker) -> None:
    leaver = a_member(hand, "a", keeps=True, acknowledges=False)
    publisher = hand.connects("p")
    publisher.publishes("t", b"1", qos=2)
    hand.settle()
    other = a_member(hand, "b", keeps=True)
    leaver.drops()
    hand.settle()
    assert other.payloads == []
    again = hand.keeps("a", acknowledges=False)
    assert [(message.payload, message.dup) for message in again.messages] == [(b"1", True)]
    again.drops()
    hand.connects("a", clean_start=True)
    hand.settle()
    assert other.payloads == []


def test_what_a_session_that_ends_had_been_sent_goes_to_another_member(hand: HandDrivenBroker) -> None:
    leaver = a_member(hand, "a", keeps=True, acknowledges=False)
    hand.connects("p").publishes("t", b"1", b"2")
    hand.settle()
    leaver.drops()
    hand.settle()
    other = a_member(hand, "b", keeps=True)
    assert other.payloads == []
    hand.connects("a", clean_start=True)
    hand.settle()
    assert other.payloads == [b"1", b"2"]
    assert hand.state.sessions["b"].queued == 0


def test_what_is_handed_over_is_stored_with_its_new_session(hand: HandDrivenBroker) -> None:
    leaver = a_member(hand, "a", keeps=True, acknowledges=False)
    hand.connects("p").publishes("t", b"1")
    hand.settle()
    other = a_member(hand, "b", keeps=True, acknowledges=False)
    hand.passes(s=1)
    leaver.drops()
    hand.settle()
    hand.passes(s=1)
    again = hand.restarted()
    assert again.keeps("a").payloads == []
    assert again.keeps("b").payloads == [b"1"]
    assert other.payloads == [b"1"]


@pytest.mark.promise("device-9")
@pytest.mark.parametrize("ends", [False, True])
def test_what_is_handed_over_is_stored_before_it_goes_from_its_old_session(
    hand: HandDrivenBroker, *, ends: bool
) -> None:
    """Also for who is there and may acknowledge it at once: the log is read again from behind it."""
    leaver = a_member(hand, "a", keeps=True, acknowledges=False)
    hand.connects("p").publishes("t", b"1")
    hand.settle()
    hand.passes(s=1)
    if ends:
        leaver.drops()
        hand.passes(s=1)
    a_member(hand, "b", keeps=True, acknowledges=False)
    if ends:
        hand.connects("a", clean_start=True)
    else:
        leaver.drops()
    hand.settle()
    assert hand.restarted().keeps("b").payloads == [b"1"]


def test_a_long_queue_of_a_session_that_ends_is_handed_over_to_its_end(hand: HandDrivenBroker) -> None:
    leaver = a_member(hand, "a", keeps=True)
    leaver.drops()
    payloads = [b"%d" % number for number in range(3 * PAGE_MESSAGES)]
    hand.connects("p").publishes("t", *payloads)
    hand.settle()
    other = a_member(hand, "b", keeps=True)
    hand.connects("a", clean_start=True)
    hand.settle()
    assert other.payloads == payloads


def test_what_waits_for_the_window_is_handed_over_too(hand: HandDrivenBroker) -> None:
    leaver = a_member(hand, "a", keeps=False, acknowledges=False, receive_maximum=1)
    hand.connects("p").publishes("t", b"1", b"2", b"3")
    hand.settle()
    other = a_member(hand, "b", keeps=False)
    leaver.leaves()
    hand.settle()
    assert other.payloads == [b"1", b"2", b"3"]


def test_a_refused_message_goes_to_nobody_else(hand: HandDrivenBroker) -> None:
    refuser = a_member(hand, "a", keeps=True, acknowledges=False)
    publisher = hand.connects("p")
    publisher.publishes("t", b"1")
    publisher.publishes("t", b"2", qos=2, first_id=2)
    hand.settle()
    other = a_member(hand, "b", keeps=True)
    refuser.does(Puback(1, 0x83), Pubrec(2, 0x83))
    refuser.drops()
    hand.settle()
    assert other.payloads == []


def test_an_expired_message_goes_to_nobody(hand: HandDrivenBroker) -> None:
    leaver = a_member(hand, "a", keeps=False, acknowledges=False)
    publisher = hand.connects("p")
    publisher.does(Publish("t", b"old", 1, 1, properties=Properties(message_expiry_interval=5)))
    publisher.does(Publish("t", b"new", 1, 2, properties=Properties(message_expiry_interval=50)))
    hand.settle()
    other = a_member(hand, "b", keeps=False)
    hand.passes(s=10)
    leaver.drops()
    hand.settle()
    assert other.payloads == [b"new"]
    properties = other.messages[0].properties
    assert properties is not None and properties.message_expiry_interval == 40


def test_the_subscription_identifier_tells_the_group(hand: HandDrivenBroker) -> None:
    leaver = hand.connects("a", acknowledges=False)
    leaver.subscribes("$share/g/t", qos=1, identifier=1)
    leaver.subscribes("$share/h/t", qos=1, identifier=2)
    hand.connects("p").publishes("t", b"1")
    hand.settle()
    of_g, of_h = hand.connects("g"), hand.connects("h")
    of_g.subscribes("$share/g/t", qos=1)
    of_h.subscribes("$share/h/t", qos=1)
    leaver.drops()
    hand.settle()
    assert of_g.payloads == of_h.payloads == [b"1"]


@pytest.mark.parametrize("keeps", [False, True], ids=["direct", "kept"])
def test_a_member_with_qos_0_gets_qos_1_messages_with_qos_0(hand: HandDrivenBroker, keeps: bool) -> None:
    member = a_member(hand, "a", keeps=keeps, qos=0)
    hand.connects("p").publishes("t", b"1")
    hand.settle()
    assert [(message.payload, message.qos) for message in member.messages] == [(b"1", 0)]


def test_a_full_window_is_no_reason_to_hand_over(hand: HandDrivenBroker) -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(inflight_max=1))
    first = a_member(hand, "a", keeps=False, acknowledges=False)
    second = a_member(hand, "b", keeps=False, acknowledges=False)
    hand.connects("p").publishes("t", b"1", b"2", b"3")
    hand.settle()
    assert sorted(first.payloads + second.payloads) == [b"1", b"2"]
