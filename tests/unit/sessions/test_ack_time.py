"""How the time that a client takes to acknowledge is measured."""

from __future__ import annotations

import pytest

from embermq.model.message import Message
from embermq.sessions.ack_time import LINGER_MAX_MS, SPREAD_MIN_MS, AckTime
from embermq.sessions.session import Delivery


def a_delivery() -> Delivery:
    return Delivery(Message("t", b"", 1, False, "p", 5, 0), b"", 0, 1, False, ())


def measured(*times_ms: int) -> AckTime:
    ack_time = AckTime()
    for took_ms in times_ms:
        ack_time.watch(a_delivery(), 1_000)
        ack_time.acknowledged(1_000 + took_ms)
    return ack_time


def test_nobody_knows_at_first() -> None:
    assert AckTime().linger_ms == LINGER_MAX_MS


def test_the_first_one_may_deviate_by_half_and_the_next_ones_are_smoothed() -> None:
    first = measured(80)
    assert (first.mean_ms, first.deviation_ms, first.linger_ms) == (80, 40, 240)
    second = measured(80, 120)
    assert (second.mean_ms, second.deviation_ms, second.linger_ms) == (85, 40, 245)


def test_a_regular_client_is_given_a_little_more_than_it_takes() -> None:
    assert measured(*[80] * 50).linger_ms == pytest.approx(80 + SPREAD_MIN_MS)


@pytest.mark.parametrize("took_ms", [900, 999])
def test_nobody_is_given_more_than_the_most(took_ms: int) -> None:
    assert measured(took_ms).linger_ms == LINGER_MAX_MS


def test_who_has_fallen_back_and_is_too_slow_stays_there_until_it_is_quicker() -> None:
    ack_time = measured(*[2_000] * 20)
    ack_time.linger_ms = 0
    quicker = 0
    while not ack_time.linger_ms:
        ack_time.watch(a_delivery(), 0)
        ack_time.acknowledged(100)
        quicker += 1
    assert 1 < quicker < 10


def test_one_at_a_time_is_measured_and_not_one_that_was_given_up() -> None:
    ack_time = AckTime()
    first, second, third = (a_delivery() for _ in range(3))
    ack_time.watch(first, 1)
    ack_time.watch(second, 2)
    assert (ack_time.probe, ack_time.sent_ms) == (first, 1)
    first.settled = True
    ack_time.watch(third, 3)
    assert (ack_time.probe, ack_time.sent_ms) == (third, 3)
