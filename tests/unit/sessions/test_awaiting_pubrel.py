"""QoS 2 messages for live receivers wait for their PUBREL, but not for ever and not without a limit."""

import pytest
from tests.support.hand_driven import HandDrivenBroker, numbered

from embermq.mqtt.wire.packets import Publish, Pubrel, Will
from embermq.mqtt.wire.properties import Properties
from embermq.sessions import awaiting_pubrel as holding


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


def test_the_order_is_that_of_the_publishes_whatever_pubrel_comes_first(hand: HandDrivenBroker) -> None:
    subscriber, publisher = hand.connects("s"), hand.connects("p")
    subscriber.subscribes("t")
    publisher.publishes("t", *numbered(4), qos=2)
    hand.settle()
    assert subscriber.payloads == []
    publisher.does(Pubrel(3))
    hand.settle()
    assert subscriber.payloads == numbered(3)
    publisher.does(Pubrel(1), Pubrel(3), Pubrel(4))
    hand.settle()
    assert subscriber.payloads == numbered(4)
    assert publisher.held is not None and publisher.held.said_bytes == 0


@pytest.mark.parametrize("by", ["drops", "leaves", "is taken over"])
def test_the_end_of_the_connection_lets_them_go_before_the_will(hand: HandDrivenBroker, by: str) -> None:
    subscriber, publisher = hand.connects("s"), hand.connects("p", will=Will("t", b"will"))
    subscriber.subscribes("t")
    publisher.publishes("t", b"1", b"2", qos=2)
    hand.settle()
    if by == "is taken over":
        hand.connects("p")
    else:
        getattr(publisher, by)()
    hand.settle()
    assert subscriber.payloads == [b"1", b"2", *([] if by == "leaves" else [b"will"])]


def test_more_than_the_limit_goes_on(hand: HandDrivenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    subscriber, publisher = hand.connects("s"), hand.connects("p")
    subscriber.subscribes("t")
    monkeypatch.setattr(holding, "HELD_MAX", 2)
    publisher.publishes("t", *numbered(4), qos=2)
    hand.settle()
    assert subscriber.payloads == numbered(3)
    monkeypatch.setattr(holding, "HELD_BYTES_MAX", 100)
    publisher.publishes("t", b"x" * 101, qos=2, first_id=9)
    hand.settle()
    assert subscriber.payloads == [*numbered(4), b"x" * 101]
    publisher.does(*map(Pubrel, (1, 2, 3, 4, 9)))
    hand.settle()
    assert len(subscriber.payloads) == 5


def test_a_packet_id_that_is_released_before_pubrec_may_be_used_anew(hand: HandDrivenBroker) -> None:
    subscriber, publisher = hand.connects("s"), hand.connects("p")
    subscriber.subscribes("t")
    publisher.does(Publish("t", b"1", 2, 1), Pubrel(1), Publish("t", b"2", 2, 1))
    hand.settle()
    assert subscriber.payloads == [b"1"]
    publisher.does(Pubrel(1))
    hand.settle()
    assert subscriber.payloads == [b"1", b"2"]


def test_the_time_that_a_message_waited_counts(hand: HandDrivenBroker) -> None:
    subscriber, publisher = hand.connects("s"), hand.connects("p")
    subscriber.subscribes("t")
    for number, expiry_s in ((1, 10), (2, 1)):
        expiry = Properties(message_expiry_interval=expiry_s)
        publisher.does(Publish("t", b"%d" % number, 2, number, properties=expiry))
    hand.settle()
    hand.passes(s=3)
    publisher.does(Pubrel(1), Pubrel(2))
    hand.settle()
    (message,) = subscriber.messages
    assert message.properties == Properties(message_expiry_interval=7)


def test_sessions_that_are_kept_do_not_wait(hand: HandDrivenBroker) -> None:
    """What is acknowledged is stored for them, and no crash takes it back."""
    subscriber, publisher = hand.keeps("s"), hand.connects("p")
    subscriber.subscribes("t")
    publisher.publishes("t", b"x", qos=2)
    hand.settle()
    assert subscriber.payloads == [b"x"]
