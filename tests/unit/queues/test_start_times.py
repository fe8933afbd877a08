"""A group that begins at a time: the log is asked for it, and nobody but who asked waits."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.support.stand_in_store import StandInQueueStore

from embermq.mqtt.wire.packets import Publish, Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.settings import BrokerQueueSettings
from embermq.sessions.durable_queues import OffsetFound
from embermq.sessions.waiting_subscriptions import WAIT_MS

TOPIC = "$queue/work"
WHEN, WHEN_MS = "2030-01-31T12:00:00Z", 1_896_091_200_000


class Hand(HandDrivenBroker):
    """With queues, and a log that answers when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, OffsetFound]] = []
        self.ticks_begun = 0
        self.queues = MqttQueues(
            self.state,
            BrokerQueueSettings(),
            StandInQueueStore(self.store),
            lambda time_ms, then: self.asked.append((time_ms, then)),
        )
        self.state.tick.wake = self._begin_tick
        self.state.queues = self.queues

    def _begin_tick(self) -> None:
        self.ticks_begun += 1

    def run(self) -> None:
        self.queues.run()
        super().run()

    def rests(self) -> None:
        for _ in range(3):
            self.settle()

    def with_messages(self) -> HandLink:
        link = self.connects("p")
        link.publishes(TOPIC, *(b"%d" % number for number in range(5)))
        self.rests()
        return link

    def answers(self, found: int | StoreError) -> None:
        (_, then) = self.asked.pop(0)
        then(found)
        self.rests()


def asks(link: HandLink, packet_id: int = 7, topic: str = TOPIC, start: str = WHEN) -> None:
    said = Properties(user_properties=(("start-position", start),))
    link.does(Subscribe(packet_id, (Subscription(topic, 1),), said))
    link.hand.settle()


@pytest.mark.promise("queues-18")
def test_the_answer_waits_for_the_log_and_others_do_not() -> None:
    hand = Hand()
    publisher = hand.with_messages()
    link = hand.connects("c")
    asks(link)
    assert [time_ms for time_ms, _ in hand.asked] == [WHEN_MS] and not link.all(Suback)
    link.publishes(TOPIC, b"own")
    other = hand.connects("d")
    assert other.subscribes("$queue/other", qos=1) == (1,)
    publisher.publishes(TOPIC, b"5", first_id=90)
    hand.rests()
    assert [each.packet_id for each in link.all(Publish)] == [] and hand.asked
    begun = hand.ticks_begun
    hand.answers(3)
    assert hand.ticks_begun > begun, "nobody else may be there to begin one"
    assert link.last(Suback).reason_codes == (1,)
    assert sorted(link.payloads) == [b"3", b"4", b"5", b"own"]


@pytest.mark.promise("queues-18")
def test_what_is_being_committed_is_not_passed_over() -> None:
    hand = Hand()
    publisher = hand.with_messages()
    link = hand.connects("c")
    asks(link)
    publisher.publishes(TOPIC, b"5", first_id=90)
    hand.answers(5)
    assert link.payloads == [b"5"]


@pytest.mark.promise("queues-18")
def test_what_changes_subscriptions_on_the_connection_keeps_its_order() -> None:
    hand = Hand()
    hand.with_messages()
    link = hand.connects("c")
    asks(link)
    link.does(Unsubscribe(8, (TOPIC,)), Subscribe(9, (Subscription("plain", 0),)))
    hand.rests()
    assert not link.all(Unsuback) and not link.all(Suback)
    hand.answers(0)
    assert {each.packet_id for each in link.all(Suback)} == {7, 9}
    assert link.last(Unsuback).reason_codes == (0,), "it came after what it takes back"
    queue = hand.queues.core.find("work")
    assert queue is not None and not queue.groups["c"].members


@pytest.mark.promise("queues-18")
@pytest.mark.parametrize("how", ["error", "silence"])
def test_a_log_that_does_not_answer_refuses_with_the_reason(how: str) -> None:
    hand = Hand()
    hand.with_messages()
    link = hand.connects("c")
    asks(link)
    if how == "error":
        hand.answers(StoreUnavailable("kafka.test:9092 is away"))
        why = "kafka.test:9092 is away"
    else:
        hand.passes(ms=WAIT_MS + 1_000)
        hand.rests()
        why = "the message log does not answer"
    (suback,) = link.all(Suback)
    assert suback.reason_codes == (0x83,) and suback.properties is not None
    assert suback.properties.reason_string == f"start-position cannot be found: {why}"
    queue = hand.queues.core.find("work")
    assert queue is not None and not queue.groups, "no group that begins elsewhere"
    if how == "silence":
        hand.answers(3)
        assert len(link.all(Suback)) == 1, "it comes too late"
    asks(link, 8)
    hand.answers(4)
    assert link.last(Suback).reason_codes == (1,) and link.payloads == [b"4"]


def test_who_is_gone_meanwhile_founds_nothing() -> None:
    hand = Hand()
    hand.with_messages()
    link = hand.connects("c")
    asks(link)
    link.drops()
    hand.answers(0)
    queue = hand.queues.core.find("work")
    assert queue is not None and not queue.groups
    asks(hand.connects("c"))
    assert len(hand.asked) == 1


def test_the_log_is_asked_only_for_a_group_that_is_new() -> None:
    hand = Hand()
    hand.with_messages()
    link = hand.connects("c")
    asks(link)
    hand.answers(0)
    asks(link, 8)
    asks(link, 9, "plain/topic")
    asks(link, 10, TOPIC + "/+")
    asks(link, 11, "$queue/second", "latest")
    asks(link, 12, "$queue/third", "2")
    asks(link, 13, "$queue/fourth", "nonsense")
    assert not hand.asked
    assert [each.reason_codes for each in link.all(Suback)] == [
        (1,),
        (1,),
        (1,),
        (0x8F,),
        (1,),
        (1,),
        (0x83,),
    ]


def test_a_client_that_knows_no_properties_asks_nothing() -> None:
    hand = Hand()
    link = hand.connects("c", version=ProtocolVersion.V311)
    assert link.subscribes(TOPIC, qos=1) == (1,) and not hand.asked
