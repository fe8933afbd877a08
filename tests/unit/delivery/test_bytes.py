"""Limits in bytes: of stored queues, of what waits in memory, of what one tick puts on a link."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, numbered

from embermq.delivery.device.settings import DeviceSettings
from embermq.model.message import PAIR_BYTES, Message, said_bytes
from embermq.mqtt.value import replace
from embermq.mqtt.wire.packets import Puback, Publish
from embermq.mqtt.wire.properties import Properties
from embermq.sessions.settings import MqttSettings


def a_pair(hand: HandDrivenBroker, **options: object) -> tuple[HandLink, HandLink]:
    """A publisher, and a kept subscriber of `t` at QoS 2."""
    subscriber = hand.keeps("s", **options)
    subscriber.subscribes("t")
    return hand.connects("p"), subscriber


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


BIG = 10_000


def big(count: int, start: int = 0) -> list[bytes]:
    return [payload.ljust(BIG) for payload in numbered(count, start)]


def test_over_the_bytes_of_a_queue_the_oldest_go_and_none_in_flight() -> None:
    hand = HandDrivenBroker(device=DeviceSettings(queue_bytes_max=5 * BIG + 1_000))
    publisher, subscriber = a_pair(hand, acknowledges=False, receive_maximum=2)
    publisher.publishes("t", *big(2))
    hand.settle()
    subscriber.drops()
    for number in range(2, 12):
        publisher.publishes("t", *big(1, number), first_id=number + 1)
        hand.settle()
    hand.settle()
    hand.counts_queues()
    assert hand.state.counters.dropped_offline_limit == 7
    hand = hand.restarted()
    hand.counts_queues()
    again = hand.keeps("s")
    assert again.payloads == [*big(2), *big(3, 9)]
    hand.passes(s=1)
    hand.counts_queues()
    assert hand.state.sessions["s"].queued_bytes == 0


def test_small_messages_make_room_for_a_large_one_however_many_they_are() -> None:
    hand = HandDrivenBroker(device=DeviceSettings(queue_bytes_max=300_000))
    publisher, subscriber = a_pair(hand)
    subscriber.drops()
    for start in range(0, 3_000, 1_000):
        publisher.publishes("t", *numbered(1_000, start))
        hand.settle()
    publisher.publishes("t", b"x" * 250_000, first_id=3_000)
    hand.settle()
    hand.settle()
    hand.counts_queues()
    session = hand.state.sessions["s"]
    assert session.queued_bytes <= 300_000
    assert hand.keeps("s").payloads[-1] == b"x" * 250_000


def test_what_waits_is_stored_when_it_is_too_many_bytes() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(queued_bytes_max=3 * (BIG + len("t"))))
    publisher, subscriber = a_pair(hand, acknowledges=False, receive_maximum=1)
    publisher.publishes("t", *big(4))
    hand.settle()
    assert hand.state.counters.messages_stored == 0
    hand.counts_queues()
    publisher.publishes("t", *big(1, 4), first_id=5)
    hand.settle()
    hand.counts_queues()
    assert hand.state.counters.messages_stored == 5
    subscriber.acknowledges = True
    subscriber.does(Puback(1))
    hand.settle()
    assert subscriber.payloads == big(5)


def test_a_direct_receiver_waits_in_memory_up_to_so_many_bytes() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(queued_bytes_max=3 * (BIG + len("t"))))
    publisher, subscriber = hand.connects("p"), hand.connects("d", receive_maximum=1, acknowledges=False)
    subscriber.subscribes("t")
    publisher.publishes("t", *big(10))
    hand.settle()
    hand.counts_queues()
    assert hand.state.counters.dropped_slow == 6
    subscriber.acknowledges = True
    subscriber.does(Puback(1))
    hand.settle()
    assert subscriber.payloads == big(4)
    hand.counts_queues()


PAIRS = (("name", "x" * 500),) * 20
WITH_PAIRS = 1 + sum(PAIR_BYTES + len(name) + len(value) for name, value in PAIRS)


def empty_with(count: int, properties: Properties) -> list[Publish]:
    """Messages to `t` that are nothing but properties."""
    return [Publish("t", b"", 1, number + 1, properties=properties) for number in range(count)]


def test_properties_and_topics_count_as_payloads_do() -> None:
    """Else a message could be a hundred times as large as what is counted of it."""
    message = Message("topic", b"payload", 1, False, "p", 5, 1)
    assert said_bytes(message) == len("topic") + len(b"payload")
    for properties, size in (
        (Properties(user_properties=PAIRS), WITH_PAIRS - 1),
        (Properties(user_properties=(("", ""),) * 9), 9 * PAIR_BYTES),
        (Properties(correlation_data=bytes(700)), 700),
        (Properties(response_topic="r" * 800), 800),
        (Properties(content_type="c" * 900), 900),
    ):
        assert said_bytes(replace(message, properties=properties)) == said_bytes(message) + size


def test_messages_of_properties_alone_wait_up_to_so_many_bytes() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(queued_bytes_max=3 * WITH_PAIRS))
    publisher, subscriber = hand.connects("p"), hand.connects("d", receive_maximum=1, acknowledges=False)
    subscriber.subscribes("t")
    publisher.does(*empty_with(10, Properties(user_properties=PAIRS)))
    hand.settle()
    hand.counts_queues()
    assert hand.state.sessions["d"].waiting_bytes == 3 * WITH_PAIRS
    assert hand.state.counters.dropped_slow == 6
    subscriber.acknowledges = True
    subscriber.does(Puback(1))
    hand.settle()
    assert len(subscriber.messages) == 4 and hand.state.sessions["d"].waiting_bytes == 0


def test_for_a_kept_session_they_are_stored_past_that() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(queued_bytes_max=3 * WITH_PAIRS))
    publisher, subscriber = a_pair(hand, acknowledges=False, receive_maximum=1)
    packets = empty_with(5, Properties(user_properties=PAIRS))
    publisher.does(*packets[:4])
    hand.settle()
    hand.counts_queues()
    assert hand.state.counters.messages_stored == 0
    publisher.does(packets[4])
    hand.settle()
    hand.counts_queues()
    assert hand.state.counters.messages_stored == 5
    subscriber.acknowledges = True
    subscriber.does(Puback(1))
    hand.settle()
    assert len(subscriber.messages) == 5 and hand.state.sessions["s"].waiting_bytes == 0


def test_retained_messages_that_wait_are_counted_so_too() -> None:
    size = WITH_PAIRS + len("r0") - len("t") + len(b".")
    hand = HandDrivenBroker()
    publisher = hand.connects("p")
    for number in range(2):
        properties = Properties(user_properties=PAIRS)
        publisher.does(Publish(f"r{number}", b".", 1, number + 1, True, properties=properties))
    hand.settle()
    subscriber = hand.connects("d", receive_maximum=1, acknowledges=False)
    subscriber.subscribes("+")
    hand.settle()
    hand.counts_queues()
    assert hand.state.sessions["d"].waiting_bytes == size
    subscriber.acknowledges = True
    subscriber.does(Puback(1))
    hand.settle()
    assert len(subscriber.messages) == 2 and hand.state.sessions["d"].waiting_bytes == 0


MEGABYTE = 1024 * 1024


def most_at_once(hand: HandDrivenBroker, subscriber: HandLink) -> int:
    """Bytes of the largest pack that one tick puts on the link, until nothing more comes."""
    sizes: list[int] = []
    while True:
        before = len(subscriber.messages)
        hand.run()
        hand.run()
        new = subscriber.messages[before:]
        if not new and not subscriber.auto and hand.state.tick.batch.is_empty():
            return max(sizes, default=0)
        sizes.append(sum(len(message.payload) for message in new))


def test_a_backlog_of_large_messages_comes_in_small_packs(hand: HandDrivenBroker) -> None:
    publisher, subscriber = a_pair(hand)
    subscriber.drops()
    payloads = [payload.ljust(100_000) for payload in numbered(40)]
    publisher.publishes("t", *payloads)
    hand.settle()
    again = hand.keeps("s", settles=False)
    assert most_at_once(hand, again) < MEGABYTE
    assert again.payloads == payloads


@pytest.mark.parametrize("kept", [True, False])
def test_a_window_that_opens_is_not_filled_at_once_with_large_messages(
    hand: HandDrivenBroker, kept: bool
) -> None:
    publisher = hand.connects("p")
    subscriber = (hand.keeps if kept else hand.connects)("s", acknowledges=False)
    subscriber.subscribes("t")
    subscriber.paused = True
    payloads = [payload.ljust(100_000) for payload in numbered(40)]
    publisher.publishes("t", *payloads)
    hand.run()
    subscriber.paused = False
    subscriber.acknowledges = True
    session = hand.state.sessions["s"]
    hand.state.path(session).writable(session)
    assert most_at_once(hand, subscriber) < MEGABYTE
    assert subscriber.payloads == payloads


@pytest.mark.parametrize("kept", [True, False])
def test_what_has_large_properties_comes_in_small_packs_too(kept: bool) -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(queued_bytes_max=64 * MEGABYTE))
    publisher = hand.connects("p")
    subscriber = (hand.keeps if kept else hand.connects)("s", acknowledges=False)
    subscriber.subscribes("t")
    subscriber.paused = True
    publisher.does(*empty_with(40, Properties(user_properties=(("name", "x" * 50_000),) * 2)))
    hand.run()
    subscriber.paused = False
    session = hand.state.sessions["s"]
    hand.state.path(session).writable(session)
    before = len(subscriber.messages)
    hand.run()
    assert 1 <= len(subscriber.messages) - before <= 4


def test_what_is_resent_comes_in_small_packs_too(hand: HandDrivenBroker) -> None:
    publisher, subscriber = a_pair(hand, acknowledges=False)
    payloads = [payload.ljust(100_000) for payload in numbered(40)]
    publisher.publishes("t", *payloads)
    hand.settle()
    subscriber.drops()
    hand.settle()
    again = hand.keeps("s", settles=False)
    assert most_at_once(hand, again) < MEGABYTE
    assert again.payloads == payloads
    assert all(message.dup for message in again.messages)
    hand.passes(s=1)
    hand.counts_queues()


def test_a_large_batch_is_written_in_parts(hand: HandDrivenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a link that takes no more is known as such before it has got all of it."""
    publisher, subscriber = a_pair(hand)
    sizes: list[int] = []
    flush = HandLink.flush

    def measured(link: HandLink) -> None:
        if link is subscriber:
            sizes.append(sum(map(len, link.out)))
            link.paused = sum(sizes) > 2 * MEGABYTE
        flush(link)

    monkeypatch.setattr(HandLink, "flush", measured)
    hand.held = True
    hand.run()
    payloads = [payload.ljust(300_000) for payload in numbered(20)]
    publisher.publishes("t", *payloads)
    hand.run()
    hand.finish_commit()
    hand.settle()
    assert max(sizes) < 1.5 * MEGABYTE
    assert 2 * MEGABYTE < sum(sizes) < 4 * MEGABYTE


def test_what_waits_in_memory_is_stored_before_the_floor_passes_it(hand: HandDrivenBroker) -> None:
    publisher = hand.connects("p")
    subscriber = hand.keeps("s", receive_maximum=1, acknowledges=False)
    subscriber.subscribes("t")
    publisher.publishes("t", *numbered(3))
    hand.settle()
    hand.passes(s=5)
    again = hand.restarted()
    assert again.keeps("s").payloads == numbered(3)
