"""Readers of application logs that have nothing to do, whose clock is set back, or whose place is lost."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, numbered
from tests.support.hand_kafka import HandKafka
from tests.unit.delivery.test_fed_readers import APPLICATION, comes, publishes


@pytest.fixture
def kafka() -> HandKafka:
    return HandKafka()


@pytest.fixture
def hand(kafka: HandKafka) -> HandDrivenBroker:
    return HandDrivenBroker(kafka=kafka)


def test_logs_are_asked_for_until_their_tails_serve(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    """Thousands of clients at rest would be asked about with each report."""
    comes(hand).drops()
    hand.keeps("new", client_type=APPLICATION)
    for count in (3, 6):
        publishes(hand, *numbered(3))
        kafka.carry(*range(count - 3, count))
        kafka.report()
        hand.settle()
        if count == 3:
            comes(hand)
        hand.passes(s=4)
    assert kafka.log_of("app").start == 6
    assert set(kafka.logs.asked_for_ends) == {kafka.logs.name("app")}
    asked = len(kafka.logs.asked_for_ends)
    kafka.progress.said = {0: 1_000, 1: 1_000}
    hand.passes(s=4)
    assert len(kafka.logs.asked_for_ends) == asked


def test_a_clock_that_is_set_back_holds_up_nothing(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    comes(hand)
    hand.passes(s=2)
    hand.state.tick.now_ms -= 3_600_000
    publishes(hand, *numbered(10))
    kafka.carry(*range(10))
    hand.settle()
    kafka.report()
    hand.passes(s=4)
    assert kafka.log_of("app").start == 10


def test_a_client_whose_place_is_lost_gets_all_that_its_log_has(
    hand: HandDrivenBroker, kafka: HandKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """The data directory was lost, the session was stored elsewhere."""
    comes(hand).drops()
    publishes(hand, *numbered(5))
    kafka.carry(*range(5))
    hand = hand.restarted()
    hand.store.positions.clear()
    assert comes(hand).payloads == numbered(5)
    assert "how far its client had come is not known any more" in caplog.text
