"""The order that a crash leaves: what was sent and not yet written comes before what was accepted after it."""

import pytest
from tests.support.hand_driven import HandDrivenBroker

from embermq.mqtt.wire.packets import Puback


@pytest.mark.promise("device-8", "device-11", "repositories-1")
def test_a_page_that_was_sent_does_not_overtake_what_was_in_memory_only() -> None:
    """The client has heard the first three; all that came after them was lost in the socket with the broker."""
    hand = HandDrivenBroker()
    publisher = hand.keeps("publisher")
    subscriber = hand.keeps("subscriber", acknowledges=False, receive_maximum=4)
    subscriber.subscribes("t")
    publisher.publishes("t", b"1", b"2", b"3", b"4", first_id=1)
    hand.settle()
    assert subscriber.payloads == [b"1", b"2", b"3", b"4"]
    publisher.publishes("t", b"other", qos=2, first_id=5)
    publisher.publishes("t", b"5", first_id=6)
    hand.settle()
    first, second, third, _ = subscriber.messages
    subscriber.does(Puback(first.packet_id), Puback(second.packet_id), Puback(third.packet_id))
    hand.settle()
    assert subscriber.payloads == [b"1", b"2", b"3", b"4", b"other", b"5"]

    hand = hand.restarted()
    again = hand.keeps("subscriber")
    hand.settle()
    at_qos_1 = [message.payload for message in again.messages if message.qos == 1]
    assert at_qos_1[-2:] == [b"4", b"5"]


@pytest.mark.promise("device-1", "device-11")
def test_what_was_sent_before_an_unsubscribe_is_still_owed_after_a_crash() -> None:
    """[MQTT-3.10.4-3]: the log is read again with the subscriptions as they are then."""
    hand = HandDrivenBroker()
    publisher = hand.keeps("publisher")
    subscriber = hand.keeps("subscriber", acknowledges=False)
    subscriber.subscribes("t")
    publisher.publishes("t", b"sent and not acknowledged")
    hand.settle()
    assert subscriber.payloads == [b"sent and not acknowledged"]
    subscriber.unsubscribes("t")

    hand = hand.restarted()
    again = hand.keeps("subscriber")
    hand.settle()
    assert again.payloads == [b"sent and not acknowledged"]
    assert again.messages[0].dup


@pytest.mark.promise("device-14")
@pytest.mark.parametrize("lost", range(3))
def test_each_copy_of_a_member_of_two_groups_with_a_plain_subscription_is_found_missing(lost: int) -> None:
    """The store of sessions has the others, and has had them all: one of several servers may lose what is newest."""
    hand = HandDrivenBroker()
    link = hand.keeps("a", acknowledges=False)
    link.subscribes("$share/g/t/#", "$share/h/t/+", "t/a", qos=2)
    hand.keeps("publisher").publishes("t/a", b"once for each", qos=2)
    hand.settle()
    assert link.payloads == [b"once for each"] * 3
    rows = hand.store.queue
    del rows[sorted(rows)[lost]]
    hand.store.dispatcher_floor = 0
    again = hand.restarted().keeps("a")
    again.hand.settle()
    assert again.payloads == [b"once for each"] * 3
    assert sorted(message.dup for message in again.messages) == [False, True, True]


@pytest.mark.promise("device-14")
def test_what_a_member_has_settled_that_has_left_since_goes_to_nobody_else() -> None:
    """Its subscription matches nothing any more, or only what came behind the message."""
    hand = HandDrivenBroker()
    leaving = hand.keeps("a")
    leaving.subscribes("$share/g/t", qos=2)
    staying = hand.keeps("b")
    staying.subscribes("$share/g/t", qos=2)
    staying.drops()
    hand.keeps("publisher").publishes("t", b"had by one", qos=2)
    hand.settle()
    assert leaving.payloads == [b"had by one"]
    leaving.unsubscribes("$share/g/t")
    leaving.subscribes("$share/g/t", qos=2)
    hand.settle()
    assert not hand.store.dispatcher_floor, "a start looks at it again"
    hand = hand.restarted()
    members = [hand.keeps(name) for name in ("a", "b")]
    hand.settle()
    assert [member.payloads for member in members] == [[], []]
