"""Publishes to queues and control messages in ticks that cannot be stored."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.support.stand_in_store import StandInQueueStore

from embermq.mqtt.wire.packets import Puback, Publish, Pubrec, Will
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError, StoreFull
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.settings import BrokerQueueSettings

TOPIC = "$queue/work"


class Hand(HandDrivenBroker):
    """With queues, and commits that stay open until a test ends them."""

    def __init__(self) -> None:
        super().__init__()
        state = self.state
        self.queues = MqttQueues(
            state,
            BrokerQueueSettings(),
            StandInQueueStore(self.store),
            lambda _ms, then: then(0),
        )
        state.queues = self.queues

    def run(self) -> None:
        self.queues.run()
        super().run()

    @property
    def depth(self) -> int:
        queue = self.queues.core.find("work")
        assert queue is not None
        return len(queue.entries)


def publish(link: HandLink, packet_id: int, *, qos: int = 1, **said: str) -> None:
    pairs = tuple((name.replace("_", "-"), value) for name, value in said.items())
    properties = Properties(user_properties=pairs) if pairs else None
    link.does(Publish(TOPIC, b"%d" % packet_id, qos, packet_id, False, False, properties))


def codes(link: HandLink) -> list[tuple[int, int]]:
    return [(each.packet_id, each.reason_code) for each in link.received if isinstance(each, Puback | Pubrec)]


def test_publishes_are_answered_when_their_tick_is_durable_and_not_before() -> None:
    hand = Hand()
    link = hand.connects("p")
    hand.held = True
    publish(link, 1)
    publish(link, 2, qos=2)
    hand.settle()
    assert codes(link) == [] and hand.depth == 0
    hand.finish_commit()
    hand.settle()
    assert codes(link) == [(1, 0), (2, 0)] and hand.depth == 2


def test_a_refused_tick_leaves_nothing() -> None:
    hand = Hand()
    link, old = hand.connects("p"), hand.connects("q", version=ProtocolVersion.V311)
    hand.failures = [StoreFull("no room")]
    publish(link, 1)
    publish(link, 2, qos=2)
    publish(old, 1)
    hand.settle()
    assert codes(link) == [(1, 0x97), (2, 0x97)] and old.ended and not codes(old)
    assert hand.depth == 0 and not hand.store.queues.entries
    publish(link, 2, qos=2)  # the packet id is free
    hand.settle()
    assert codes(link)[2:] == [(2, 0)] and hand.depth == 1


def test_a_repeat_of_what_could_not_be_stored_is_refused_with_it() -> None:
    hand = Hand()
    link = hand.connects("p")
    hand.failures = [StoreError("away")]
    publish(link, 1, dedup_id="order 1")
    publish(link, 2, dedup_id="order 1")
    hand.settle()
    assert codes(link) == [(1, 0x83), (2, 0x83)]
    publish(link, 3, dedup_id="order 1")
    hand.settle()
    assert codes(link)[2:] == [(3, 0)] and hand.depth == 1


def test_so_is_one_that_waits_for_the_next_tick() -> None:
    hand = Hand()
    link = hand.connects("p")
    hand.held = True
    publish(link, 1, dedup_id="order 1")
    hand.settle()
    publish(link, 2, dedup_id="order 1")
    publish(link, 3, qos=2, dedup_id="order 1")
    publish(link, 4, dedup_id="order 2")
    hand.settle()
    assert codes(link) == []
    hand.failures = [StoreError("away")]
    hand.finish_commit()
    hand.held = False
    hand.settle()
    assert codes(link) == [(1, 0x83), (2, 0x83), (3, 0x83), (4, 0)]
    assert hand.depth == 1
    publish(link, 3, qos=2, dedup_id="order 1")
    hand.settle()
    assert codes(link)[4:] == [(3, 0)] and hand.depth == 2


def test_a_repeat_of_what_is_durable_stands_whatever_comes() -> None:
    hand = Hand()
    link = hand.connects("p")
    hand.held = True
    publish(link, 1, dedup_id="order 1")
    hand.settle()
    publish(link, 2, dedup_id="order 1")
    hand.finish_commit()
    hand.held = False
    hand.settle()
    assert codes(link) == [(1, 0), (2, 0)] and hand.depth == 1


def test_a_will_is_tried_again() -> None:
    hand = Hand()
    link = hand.connects("p", will=Will(TOPIC, b"the end", 1, True))
    hand.failures = [StoreError("away"), StoreError("still away")]
    link.drops()
    hand.settle()
    assert hand.depth == 1 and len(hand.store.queues.entries) == 1


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("is_later", [False, True])
def test_a_will_that_repeats_what_is_not_durable_yet_goes_out_when_that_is_refused(
    is_refused: bool, is_later: bool
) -> None:
    hand = Hand()
    named = Properties(user_properties=(("dedup-id", "order 1"),))
    link, leaver = hand.connects("p"), hand.connects("q", will=Will(TOPIC, b"will", 1, False, named))
    hand.held = True
    publish(link, 1, dedup_id="order 1")
    if is_later:
        hand.settle()
    leaver.drops()
    hand.settle()
    hand.failures = [StoreError("away")] if is_refused else []
    hand.finish_commit()
    hand.held = False
    hand.settle()
    assert codes(link) == [(1, 0x83 if is_refused else 0)]
    assert hand.depth == 1 and len(hand.store.queues.entries) == 1
    taker = hand.connects("t")
    taker.subscribes(TOPIC, qos=1)
    hand.settle()
    assert taker.payloads == [b"will" if is_refused else b"1"]


def test_a_control_message_hears_of_the_store_and_is_stored_with_the_next_tick() -> None:
    hand = Hand()
    link, taker = hand.connects("p"), hand.connects("t")
    taker.subscribes(TOPIC, qos=1)
    publish(link, 1)
    hand.settle()
    hand.settle()
    said = taker.messages[0].properties
    assert said is not None
    message_id = dict(said.user_properties)["message-id"]
    acked = Properties(user_properties=(("message-id", message_id),))
    hand.failures = [StoreError("away")]
    for packet_id in (7, 8):
        taker.does(Publish(f"{TOPIC}/$ack", b"", 1, packet_id, False, False, acked))
        hand.settle()
    assert codes(taker) == [(7, 0x83), (8, 0)]
    text = taker.all(Puback)[-1].properties
    assert text is not None and text.reason_string == "already settled"
    assert hand.depth == 0 and not hand.store.queues.entries
