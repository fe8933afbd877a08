"""A group that is removed between a SUBSCRIBE and its commit, or while its consumer is away."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.support.stand_in_store import StandInQueueStore

from embermq.mqtt.wire.packets import Suback, Subscribe, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.queue import Queue
from embermq.queues.settings import BrokerQueueSettings

TOPIC = "$queue/work"


class Hand(HandDrivenBroker):
    """With queues of one group each."""

    def __init__(self) -> None:
        super().__init__()
        self.queues = MqttQueues(
            self.state,
            BrokerQueueSettings(groups_max=1),
            StandInQueueStore(self.store),
            lambda time_ms, then: then(0),
        )
        self.state.queues = self.queues

    def run(self) -> None:
        self.queues.run()
        super().run()

    def rests(self) -> None:
        for _ in range(4):
            self.settle()

    @property
    def work(self) -> Queue:
        return self.queues.core.queue("work")

    def with_messages(self) -> HandLink:
        link = self.connects("p")
        link.publishes(TOPIC, *(b"%d" % number for number in range(5)))
        self.rests()
        return link


def asks(link: HandLink, start: str = "earliest") -> None:
    said = Properties(user_properties=(("start-position", start),))
    link.does(Subscribe(7, (Subscription(TOPIC, 1),), said))


@pytest.mark.promise("queues-18")
@pytest.mark.parametrize(
    ("start", "got"), [("latest", []), ("4", [b"3", b"4"]), ("2", [b"1", b"2", b"3", b"4"])]
)
def test_a_group_that_is_removed_before_the_suback_begins_where_it_was_asked_to(
    start: str, got: list[bytes]
) -> None:
    hand = Hand()
    publisher = hand.with_messages()
    link = hand.connects("c")
    asks(link, start)
    assert hand.queues.core.remove_group("work", "c")
    hand.rests()
    assert link.last(Suback).reason_codes == (1,)
    assert hand.work.groups["c"].members and link.payloads == got
    publisher.publishes(TOPIC, b"5", first_id=90)
    hand.rests()
    assert link.payloads[-1] == b"5"


@pytest.mark.promise("queues-18")
def test_what_is_published_before_the_suback_is_not_passed_over() -> None:
    hand = Hand()
    publisher = hand.with_messages()
    link = hand.connects("c")
    asks(link, "latest")
    publisher.publishes(TOPIC, b"5", first_id=90)
    assert hand.queues.core.remove_group("work", "c")
    hand.rests()
    assert link.payloads == [b"5"]


@pytest.mark.promise("queues-13")
def test_a_group_in_its_place_leaves_no_room_until_it_is_gone() -> None:
    hand = Hand()
    hand.with_messages()
    link, other = hand.connects("c"), hand.connects("d")
    asks(link)
    assert hand.queues.core.remove_group("work", "c")
    asks(other)
    hand.rests()
    assert list(hand.work.groups) == ["d"] and len(other.payloads) == 5 and not link.payloads
    other.drops()
    hand.rests()
    assert hand.queues.core.remove_group("work", "d")
    hand.rests()
    assert list(hand.work.groups) == ["c"] and len(link.payloads) == 5


@pytest.mark.promise("queues-13")
def test_who_comes_back_founds_no_group_past_the_limit_and_is_in_when_one_expires() -> None:
    hand = Hand()
    hand.with_messages()
    link = hand.connects("c", expiry_s=2**32 - 1)
    asks(link)
    hand.rests()
    link.drops()
    hand.passes(ms=6_000)
    hand.rests()
    assert hand.queues.core.remove_group("work", "c")
    hand.queues.core.open_group("work", "d", hand.state.tick.now_ms)
    hand.rests()
    back = hand.connects("c", clean_start=False, expiry_s=2**32 - 1)
    hand.rests()
    assert list(hand.work.groups) == ["d"] and not back.payloads
    hand.passes(ms=7 * 24 * 3_600_000 - 60_000)
    hand.rests()
    assert list(hand.work.groups) == ["d"]
    publisher = hand.connects("q")
    publisher.publishes(TOPIC, b"new")
    hand.passes(ms=120_000)
    hand.rests()
    assert list(hand.work.groups) == ["c"] and b"new" in back.payloads
