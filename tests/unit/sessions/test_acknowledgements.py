"""Steps of QoS 2 that clients repeat."""

import pytest
from tests.support.hand_driven import HandDrivenBroker

from embermq.mqtt.wire.packets import Pubcomp, Publish, Pubrel
from embermq.mqtt.wire.version import ProtocolVersion


@pytest.mark.promise("device-9", "repositories-1")
def test_a_repeated_pubrel_is_answered_when_the_first_one_is_durable() -> None:
    """Else the client could use the id again in the tick that still frees it, and a crash would forget the new one."""
    hand = HandDrivenBroker()
    subscriber = hand.keeps("subscriber")
    subscriber.subscribes("t")
    publisher = hand.keeps("publisher", version=ProtocolVersion.V31, acknowledges=False)
    publisher.publishes("t", b"old", qos=2, first_id=7)
    hand.settle()
    hand.held = True
    subscriber.publishes("elsewhere", b"keeps the store busy")
    hand.run()
    publisher.does(Pubrel(7), Pubrel(7))
    hand.run()
    assert not publisher.all(Pubcomp)
    hand.held = False
    hand.settle()
    assert [packet.packet_id for packet in publisher.all(Pubcomp)] == [7, 7]
    publisher.publishes("t", b"new", qos=2, first_id=7)
    hand.settle()

    hand = hand.restarted()
    publisher = hand.keeps("publisher", version=ProtocolVersion.V31, acknowledges=False)
    publisher.does(Publish("t", b"new", 2, 7, False, True))
    subscriber = hand.keeps("subscriber")
    hand.settle()
    assert len(hand.store.batches) == 3
