"""Broker time under a wall clock that somebody moves."""

from __future__ import annotations

import pytest
from tests.support.hand_time import DAY_MS, START_MS, HandTime

from embermq.edge.clock import BUILT_MS, BrokerClock, ClockChange
from embermq.model.noted_time import NotedTime

HOUR_MS = 3_600_000


class Watched:
    """A clock of which somebody looks once a second, and what it told."""

    def __init__(self, noted: NotedTime | None = None, time: HandTime | None = None) -> None:
        self.time = time or HandTime()
        self.clock = BrokerClock(noted, self.time)
        self.told: list[tuple[ClockChange, int]] = []
        self.clock.on_change = lambda change, by_ms: self.told.append((change, by_ms))

    def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.time.passes(1_000)
            self.clock.look()

    @property
    def date_ms(self) -> int:
        assert self.clock.offset_ms is not None
        return self.clock.now_ms() + self.clock.offset_ms


def test_broker_time_begins_as_the_wall_clock_and_goes_on_with_it() -> None:
    watched = Watched()
    assert watched.clock.now_ms() == START_MS
    watched.passes(100)
    assert (watched.clock.now_ms(), watched.clock.offset_ms) == (START_MS + 100_000, 0)


@pytest.mark.parametrize("by_ms", [9 * DAY_MS, -2 * HOUR_MS, 61_000, -61_000])
def test_a_step_moves_dates_alone_and_is_told_once(by_ms: int) -> None:
    watched = Watched()
    watched.time.steps(by_ms)
    assert watched.clock.now_ms() == START_MS
    watched.passes(1)
    assert watched.told == [(ClockChange.STEPPED, by_ms)]
    assert abs(watched.clock.now_ms() - START_MS - 1_000) <= 10
    assert watched.date_ms == watched.time.wall_ms()
    watched.passes(5)
    assert len(watched.told) == 1 and watched.clock.statistics().steps == 1


def test_less_than_a_minute_is_corrected_in_silence_by_one_percent_of_the_time() -> None:
    watched = Watched()
    watched.time.steps(2_000)
    watched.passes(100)
    assert watched.clock.now_ms() == START_MS + 101_000
    watched.passes(150)
    assert watched.clock.now_ms() == watched.time.wall_ms() and not watched.told


def test_broker_time_never_goes_back_while_it_is_slowed_down() -> None:
    watched = Watched()
    watched.time.steps(-30_000)
    before_ms = 0
    for _ in range(50):
        watched.time.passes(1_000)
        for _ in range(2):  # once before the correction, once after it
            now_ms = watched.clock.now_ms()
            assert now_ms >= before_ms
            before_ms = now_ms
            watched.clock.look()
    assert START_MS + 50_000 - 500 <= before_ms <= START_MS + 50_000 - 490


def test_a_time_that_another_machine_has_had_is_not_before_this_one() -> None:
    watched = Watched()
    watched.clock.go_on_from(START_MS - HOUR_MS)
    assert watched.clock.now_ms() == START_MS
    watched.clock.go_on_from(START_MS + HOUR_MS)
    assert watched.clock.now_ms() == START_MS + HOUR_MS
    assert watched.date_ms == START_MS, "dates stay those of the wall clock"
    watched.passes(100)
    assert watched.clock.now_ms() == START_MS + HOUR_MS + 99_000, "it is slowed down"
    assert not watched.told


def test_a_suspended_machine_is_no_step() -> None:
    watched = Watched()
    watched.time.passes(8 * HOUR_MS)
    watched.clock.look()
    assert watched.clock.now_ms() == START_MS + 8 * HOUR_MS and not watched.told


@pytest.mark.parametrize("by_ms", [9 * DAY_MS, -9 * DAY_MS])
def test_across_a_restart_the_wall_clock_counts_but_not_its_steps_before(by_ms: int) -> None:
    first = Watched()
    first.time.steps(by_ms)
    first.passes(1)
    noted = first.clock.noted()
    first.time.restarts(after_ms=HOUR_MS)
    again = Watched(noted, first.time)
    assert again.clock.now_ms() == noted.broker_ms + HOUR_MS
    assert again.date_ms == first.time.wall_ms()


def test_broker_time_does_not_go_back_with_a_wall_clock_that_was_set_back_while_it_was_down() -> None:
    first = Watched()
    noted = first.clock.noted()
    first.time.restarts(after_ms=1_000)
    first.time.steps(-2 * HOUR_MS)
    again = Watched(noted, first.time)
    assert again.clock.now_ms() == noted.broker_ms
    assert again.date_ms == first.time.wall_ms()


def test_a_clock_that_is_not_set_has_no_dates_until_it_is() -> None:
    watched = Watched(time=HandTime(wall_ms=1_000))
    assert (watched.clock.now_ms(), watched.clock.offset_ms) == (BUILT_MS, None)
    watched.passes(60)
    assert (watched.clock.now_ms(), watched.clock.offset_ms) == (BUILT_MS + 60_000, None)
    watched.time.steps(START_MS)
    watched.passes(1)
    assert watched.told == [(ClockChange.SET, 0)]
    assert watched.date_ms == watched.time.wall_ms()
    assert BUILT_MS + 61_000 <= watched.clock.now_ms() <= BUILT_MS + 61_010


def test_a_downtime_does_not_count_when_the_clock_is_not_set_afterwards() -> None:
    first = Watched()
    first.passes(10)
    noted = first.clock.noted()
    again = Watched(noted, HandTime(wall_ms=1_000))
    assert (again.clock.now_ms(), again.clock.offset_ms) == (noted.broker_ms, None)
    after_that = Watched(again.clock.noted(), HandTime(wall_ms=START_MS + DAY_MS))
    assert after_that.clock.now_ms() == noted.broker_ms
    assert after_that.date_ms == START_MS + DAY_MS


def test_a_clock_that_loses_its_date_says_so() -> None:
    watched = Watched()
    watched.time.steps(-START_MS)
    watched.passes(1)
    assert watched.clock.offset_ms is None
    assert [change for change, _ in watched.told] == [ClockChange.UNSET]
    assert watched.clock.now_ms() == START_MS + 1_000
