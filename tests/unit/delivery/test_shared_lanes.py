"""Shared subscriptions of applications: whose turn it is, and that a partition is read on."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import dispatch, numbered
from tests.unit.delivery.test_shared_readers import Play

from embermq.model.client_type import ClientType
from embermq.model.unacknowledged import WhyUnacknowledged
from embermq.mqtt.wire.packets import Puback, Subscribe, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode

pytestmark = pytest.mark.promise("application-11")


@pytest.fixture
def play() -> Play:
    return Play()


def test_a_lane_goes_on_behind_what_others_have_acknowledged(play: Play) -> None:
    one = play.comes("one", 0, acknowledges=False)
    play.publishes("t/0", b"held", qos=2)
    payloads = [b"x" * 1_000 + number for number in numbered(450)]
    play.publishes("t/0", *payloads)
    answered = 1
    while answered < 450:
        came = one.messages[answered:450]
        answered += len(came)
        one.does(*(Puback(message.packet_id) for message in came))
        play.hand.settle()
    two = play.comes("two")
    play.give("two", 0)
    assert two.payloads == payloads[-1:]


def test_qos_0_of_a_shared_log_comes_whole(play: Play) -> None:
    one = play.comes("one", 0, 1, qos=0)
    play.publishes("t/0", *numbered(500))
    assert one.payloads == numbered(500)


@pytest.mark.promise("pipeline-12")
def test_what_is_refused_of_a_shared_log_is_written_down_for_nobody(play: Play) -> None:
    one = play.comes("one", 0, acknowledges=False)
    one.subscribes("own/0")
    play.publishes("t/0", b"shared")
    play.publishes("own/0", b"own")
    assert sorted(one.payloads) == [b"own", b"shared"]
    one.does(*(Puback(message.packet_id, ReasonCode.QUOTA_EXCEEDED) for message in one.messages))
    play.hand.settle()
    refused = {(position, why) for _, position, why in play.hand.store.unacknowledged}
    assert refused == {(1, WhyUnacknowledged.REFUSED)}


def test_with_room_for_one_message_every_partition_has_its_turn(play: Play) -> None:
    one = play.comes("one", 0, 1, receive_maximum=1, acknowledges=False)
    play.publishes("t/0", *numbered(6), dispatches=False)
    play.publishes("t/1", *numbered(6))
    for _ in range(4):
        one.does(Puback(one.messages[-1].packet_id))
        play.hand.settle()
    assert {message.topic for message in one.messages} == {"t/0", "t/1"}


def test_with_room_for_one_message_every_group_has_its_turn(play: Play) -> None:
    one = play.hand.keeps("one", client_type=ClientType.APPLICATION, receive_maximum=1, acknowledges=False)
    one.does(Subscribe(1, (Subscription("$share/g/t/#", 1), Subscription("$share/h/t/#", 1)), None))
    play.hand.settle()
    for member in list(play.feeds.members):
        play.feeds.give(member, 0, 1)
    play.publishes("t/0", *numbered(6))
    for _ in range(3):
        one.does(Puback(one.messages[-1].packet_id))
        play.hand.settle()
    assert len(set(one.payloads)) < 4  # both groups' copies are among them


def test_the_newest_options_hold_when_two_subscribes_come_at_once(play: Play) -> None:
    one = play.hand.keeps("one", client_type=ClientType.APPLICATION)
    one.does(
        Subscribe(1, (Subscription("$share/g/t/#", 1),), Properties(subscription_identifiers=(1,))),
        Subscribe(2, (Subscription("$share/g/t/#", 2),), Properties(subscription_identifiers=(2,))),
    )
    play.hand.settle()
    play.give("one", 0, 1)
    play.publishes("t/0", b"x", qos=2)
    (message,) = one.messages
    assert (message.qos, message.properties) == (2, Properties(subscription_identifiers=(2,)))


def test_with_room_for_one_message_own_and_shared_log_have_their_turns(play: Play) -> None:
    one = play.hand.keeps("one", client_type=ClientType.APPLICATION, receive_maximum=1, acknowledges=False)
    one.does(Subscribe(1, (Subscription("$share/g/t/#", 1), Subscription("own/0", 1)), None))
    play.hand.settle()
    play.give("one", 0, 1)
    play.publishes("own/0", *numbered(6), dispatches=False)
    play.publishes("t/0", *numbered(6))
    dispatch(play.hand)
    play.hand.delivery.applications.poll()
    play.hand.settle()
    for _ in range(5):
        one.does(Puback(one.messages[-1].packet_id))
        play.hand.settle()
    topics = [message.topic for message in one.messages]
    assert topics in (["own/0", "t/0"] * 3, ["t/0", "own/0"] * 3)
