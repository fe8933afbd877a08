"""Consumers' time stands still while nothing that they settle is taken."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.support.queue_bench import Bench
from tests.unit.queues.test_refused_ticks import Hand, publish

from embermq.ports.errors import StoreError
from embermq.queues.consumer_clock import AGAIN_MS, PATIENCE_MS, ConsumerClock
from embermq.queues.durations import parse_duration
from embermq.queues.explaining import explain
from embermq.queues.names import Verb
from embermq.queues.settling import Outcome


class Asking(Bench):
    """It is found out every half second whether what consumers settle is taken."""

    takes = True

    def passes(self, duration: str) -> None:
        end_ms = self.now_ms + parse_duration(duration)
        while self.now_ms < end_ms:
            self.look()
            self.wait("500ms")
        self.look()
        self.run()

    def look(self) -> None:
        self.queues.asked(self.now_ms, lambda _: not self.takes)
        if self.takes:
            self.queues.queue("q").clock.answered(self.now_ms)

    def holding(self) -> None:
        """`a` has a message, `b` is there."""
        self.join("a")
        self.look()
        self.publish()
        self.held = self.one()
        self.join("b")


def test_the_clock_stands_from_the_patience_on_and_goes_on_where_it_stood() -> None:
    clock = ConsumerClock()
    assert clock.at(5) == 5, "nobody asks"
    assert clock.ask(1_000) and not clock.ask(1_500)
    assert [clock.at(1_000 + each) for each in (0, PATIENCE_MS, PATIENCE_MS + 1, 60_000)] == [
        1_000,
        1_000 + PATIENCE_MS,
        1_000 + PATIENCE_MS,
        1_000 + PATIENCE_MS,
    ]
    clock.answered(61_000)
    assert clock.at(61_000) == 1_000 + PATIENCE_MS and clock.at(62_000) == 2_000 + PATIENCE_MS
    stood_ms = 60_000 - PATIENCE_MS
    assert clock.until_ms(7) == clock.due_ms(7) == 7 + stood_ms
    assert clock.ask(62_000)
    clock.answered(62_500)
    assert clock.at(62_600) == 62_600 - stood_ms, "what is answered in time costs nothing"


def test_while_it_stands_what_is_over_by_broker_time_is_looked_at_now_and_then() -> None:
    clock = ConsumerClock()
    clock.ask(0)
    assert clock.at(10_000) == PATIENCE_MS
    assert clock.due_ms(PATIENCE_MS + 1) == 10_000 + AGAIN_MS
    assert clock.until_ms(PATIENCE_MS + 1) == 10_001
    assert clock.due_ms(20_000) == 20_000 + clock.stands_ms()


def test_who_comes_when_nobody_was_there_and_nothing_is_taken_has_its_time() -> None:
    clock = ConsumerClock()
    assert clock.ask(0)
    clock.rest()
    assert clock.at(50_000) == 50_000
    assert not clock.ask(60_000), "it is being found out still"
    assert clock.at(90_000) == 60_000 + PATIENCE_MS
    clock.answered(100_000)
    assert clock.at(100_000) == 60_000 + PATIENCE_MS


@pytest.mark.promise("queues-22")
def test_who_comes_just_before_nothing_is_taken_keeps_what_it_holds() -> None:
    bench = Asking()
    bench.join("a")
    bench.publish()
    held = bench.one()
    bench.join("b")
    bench.takes = False
    bench.passes("1h")
    assert not bench.take()
    bench.takes = True
    bench.passes("1s")
    assert bench.settle(held, Verb.ACK) is Outcome.DONE and not bench.sent


@pytest.mark.promise("queues-22")
def test_a_lease_has_the_time_in_which_its_settlement_could_be_taken() -> None:
    bench = Asking()
    bench.holding()
    bench.passes("10s")
    bench.takes = False
    bench.passes("1h")
    assert not bench.take()
    bench.takes = True
    bench.passes("15s")
    assert not bench.take()
    bench.passes("9s")
    assert bench.one().stamps.delivery_count == 2, "it is over, and the wait of 5 s"


@pytest.mark.promise("queues-22")
def test_it_can_be_settled_after_any_outage() -> None:
    bench = Asking()
    bench.holding()
    bench.takes = False
    bench.passes("1h")
    bench.takes = True
    bench.passes("1s")
    assert bench.settle(bench.held, Verb.ACK) is Outcome.DONE and not bench.sent


@pytest.mark.promise("queues-19")
def test_who_is_away_has_the_time_in_which_it_could_come_back() -> None:
    bench = Asking()
    bench.holding()
    bench.takes = False
    bench.passes("3s")
    bench.leave("a", may_return=True)
    bench.passes("1h")
    assert not bench.take()
    bench.takes = True
    bench.passes("1s")
    bench.join("a", epoch=2, kept_ids=(bench.held.stamps.message_id,))
    assert bench.settle(bench.held, Verb.ACK, epoch=2) is Outcome.DONE and not bench.sent


@pytest.mark.promise("queues-22")
def test_who_has_not_got_its_messages_in_an_outage_has_not_stalled() -> None:
    bench = Asking()
    bench.join("a")
    bench.look()
    bench.writes = bench.takes = False
    bench.publish()
    bench.passes("1h")
    assert not bench.queues.take_stalled()
    bench.takes = True
    bench.passes("31s")
    assert bench.queues.take_stalled() == [("q", "g", "a")]


def stood_ms(hand: Hand) -> int:
    queue, now_ms = hand.queues.core.find("work"), hand.state.tick.now_ms
    assert queue is not None
    return now_ms - queue.clock.at(now_ms)


def looks(hand: Hand, milliseconds: int) -> None:
    """So much time passes, and it is looked as it is in a broker."""
    for _ in range(milliseconds // 500):
        hand.state.tick.now_ms += 500
        hand.queues.look()
        hand.run()


def told(hand: Hand) -> list[str]:
    """What is explained of consumers' time."""
    queue = hand.queues.core.find("work")
    assert queue is not None
    return [each.text for each in explain(queue, hand.state.tick.now_ms) if each.code == "not_settled"]


@pytest.mark.parametrize("calm_ms", [0, 10_000])
@pytest.mark.parametrize("trouble", ["late", "refuses", "is known to be away"])
def test_it_is_found_out_on_the_way_of_a_settlement(trouble: str, calm_ms: int) -> None:
    hand = Hand()
    taker, producer = hand.connects("worker-1"), hand.connects("producer")
    assert taker.subscribes("$queue/work", qos=1) == (1,)
    looks(hand, calm_ms)
    assert stood_ms(hand) == 0 and told(hand) == []
    began_ms = hand.state.tick.now_ms
    if trouble == "late":
        hand.held = True
        publish(producer, 2)
        hand.run()
    elif trouble == "refuses":
        hand.state.store_failure = StoreError("full")
        hand.full = StoreError("full")
    else:
        hand.state.is_queue_away = "work".__eq__
    looks(hand, 60_000)
    assert 60_000 - PATIENCE_MS - 1_000 <= stood_ms(hand) <= 60_000
    since = datetime.fromtimestamp(began_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M")
    assert len(told(hand)) == 1 and f"not been stored since {since}" in told(hand)[0]
