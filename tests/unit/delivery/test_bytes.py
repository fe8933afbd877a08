"""Limits in bytes: of stored queues, of what waits in memory, of what one tick puts on a link."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, numbered

from embermq.broker.settings import MqttSettings
from embermq.delivery.device.settings import DeviceSettings
from embermq.protocol.packets import Puback


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
    hand = HandDrivenBroker(mqtt=MqttSettings(queued_bytes_max=3 * BIG))
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
    hand = HandDrivenBroker(mqtt=MqttSettings(queued_bytes_max=3 * BIG))
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
