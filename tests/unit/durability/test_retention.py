"""What may leave the log, and who holds it back."""

from __future__ import annotations

import pytest
from tests.support.stand_in_store import (
    StandInApplicationLog,
    StandInLog,
    StandInParked,
    StandInStore,
)

from embermq.durability.retention import Retention, RetentionLimits, RetentionState
from embermq.formats.log_record import encode_record
from embermq.model.application_positions import ReaderPosition, StoredPositions
from embermq.model.message import Message
from embermq.model.tick_writes import TickWrites
from embermq.ports.log_readers import LogReader, LogReaders

RECORDS = 100
RECORD = encode_record(Message("t", b"x" * 100, 1, False, "p", 4, 0))
FAR = 10**12


def position(committed: int) -> ReaderPosition:
    return ReaderPosition("", 0, StoredPositions(committed, committed))


class Readers(LogReaders):
    """Positions that a test sets."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}

    def positions(self) -> list[LogReader]:
        return [LogReader(name, offset, 0) for name, offset in self.found.items()]


class House:
    """A log of a hundred records, one a batch and one a second."""

    def __init__(self, **limits: object) -> None:
        self.store = StandInStore()
        for number in range(RECORDS):
            self.store.now_ms = number * 1_000
            self.tick(TickWrites(records=[RECORD]))
        self.applications = StandInApplicationLog(self.store)
        self.parked = StandInParked()
        self.readers = Readers()
        chosen = {"age_ms": FAR, "kept_bytes": FAR, "pin_bytes": FAR, "budget_bytes": FAR, "policy": "refuse"}
        self.retention = Retention(
            StandInLog(self.store),
            self.readers,
            self.applications,
            self.parked,
            RetentionLimits(**(chosen | limits)),  # type: ignore[arg-type]
        )

    def tick(self, writes: TickWrites) -> None:
        self.store.submit(writes, lambda _: None)
        self.store.commit()

    def application(self, generation: int, floor: int, complete: int = RECORDS) -> None:
        self.tick(TickWrites(application_positions={generation: position(floor)}))
        self.applications.entries[generation] = list(range(floor, RECORDS))
        self.applications.complete = complete

    def run(self, *expected: str, floor: int = RECORDS, now_ms: int = RECORDS * 1_000) -> RetentionState:
        state = self.retention.run(floor, expected, now_ms)
        self.tick(TickWrites())
        return state

    @property
    def start(self) -> int:
        return StandInLog(self.store).statistics().start_offset


def test_nothing_goes_within_the_limits() -> None:
    house = House()
    state = house.run()
    assert (house.start, state.over_limit, state.refuse_all) == (0, False, False)


def test_what_is_too_old_goes() -> None:
    house = House(age_ms=30_000)
    house.run()
    assert house.start == 70


def test_what_is_too_much_goes() -> None:
    house = House(kept_bytes=len(RECORD) * 25)
    house.run()
    assert 70 <= house.start <= 80


def test_the_dispatcher_and_confirmed_and_expected_readers_hold_it_back() -> None:
    house = House(age_ms=0)
    house.run(floor=90)
    assert house.start == 90
    house = House(age_ms=0)
    house.readers.found = {"lake": 40}
    house.run("lake")
    assert house.start == 40
    house = House(age_ms=0)
    house.run("archive")
    assert house.start == 0


def test_an_application_holds_it_back_until_the_pin_limit() -> None:
    house = House(age_ms=0)
    house.application(1, 10)
    house.run()
    assert house.start == 10


def test_past_the_pin_limit_bodies_are_parked_and_the_log_goes_on() -> None:
    house = House(age_ms=0, pin_bytes=len(RECORD) * 20)
    house.application(1, 10)
    state = house.run()
    assert state.over_limit
    assert not state.refuse_all
    assert house.start >= 79
    parked = house.parked.records[1]
    assert sorted(parked) == list(range(10, min(parked) + len(parked)))
    assert max(parked) + 1 >= house.start
    house.tick(TickWrites(application_positions={1: position(RECORDS)}))
    house.run()
    assert house.parked.logs() == []


def test_a_query_that_is_behind_refuses_or_is_passed() -> None:
    house = House(age_ms=0, pin_bytes=len(RECORD) * 20)
    assert house.run("lake").refuse_all
    assert house.start == 0
    house = House(age_ms=0, pin_bytes=len(RECORD) * 20, policy="drop-oldest")
    assert not house.run("lake").refuse_all
    assert house.start >= 79


@pytest.mark.promise("pipeline-5")
def test_each_query_has_a_policy_of_its_own() -> None:
    policies = {"archive": "drop-oldest", "lake": "pause"}
    house = House(age_ms=0, pin_bytes=len(RECORD) * 20, query_policies=policies)
    house.readers.found = {"dispatch": 90, "archive": 5}
    state = house.run("dispatch", "archive", "lake")
    assert not state.refuse_all, "nobody who publishes is to blame"
    assert (state.passed, state.to_pause) == (("archive", "lake"), ("lake",))
    assert 79 <= house.start <= 90, "what dispatch has not read stays"

    house = House(age_ms=0, pin_bytes=len(RECORD) * 20, query_policies=policies)
    house.readers.found = {"archive": 5, "dispatch": 7}
    state = house.run("dispatch", "archive")
    assert state.refuse_all, "applications wait for dispatch"
    assert (house.start, state.passed) == (7, ("archive",))


@pytest.mark.promise("pipeline-5")
def test_a_query_is_told_of_long_before_its_policy_applies() -> None:
    house = House(age_ms=0, pin_bytes=len(RECORD) * 150)
    house.readers.found = {"lake": 20, "dispatch": 90}
    state = house.run("dispatch", "lake")
    assert (state.near, state.passed, state.over_limit) == (("lake",), (), False)
    assert state.pin_limit_bytes == len(RECORD) * 150
    house.readers.found = {"lake": 30, "dispatch": 90}
    assert house.run("dispatch", "lake").near == ()


def test_past_the_whole_budget_the_policy_decides_about_applications() -> None:
    limits = {"age_ms": 0, "pin_bytes": len(RECORD) * 20, "budget_bytes": len(RECORD) * 120}
    house = House(**limits)
    house.application(1, 10)
    house.run()
    assert house.run().refused_generations == frozenset()
    tight = House(**(limits | {"budget_bytes": len(RECORD) * 30}))
    tight.application(1, 10)
    assert tight.run().refused_generations == frozenset({1})
    dropping = House(**(limits | {"budget_bytes": len(RECORD) * 30, "policy": "drop-oldest"}))
    dropping.application(1, 10)
    state = dropping.run()
    assert state.refused_generations == frozenset()
    assert state.dropped > 0


@pytest.mark.promise("pipeline-5")
def test_an_application_that_stays_behind_keeps_only_what_it_has_not_settled() -> None:
    house = House(age_ms=0, pin_bytes=len(RECORD) * 20)
    house.application(1, 10)
    house.run()
    house.tick(TickWrites(application_positions={1: position(50)}))
    house.run()
    assert min(house.parked.records[1]) == 50
    (log,) = house.parked.logs()
    assert log.next_offset > 50


@pytest.mark.promise("pipeline-5")
@pytest.mark.parametrize("expected", [("dispatch",), ()])
def test_an_application_whose_log_nobody_fills_is_under_the_policy(expected: tuple[str, ...]) -> None:
    house = House(age_ms=0, pin_bytes=len(RECORD) * 20)
    house.application(1, 10, complete=30)
    house.readers.found = {"dispatch": 30}
    state = house.run(*expected)
    assert state.refuse_all
    assert house.start == 30
    assert sorted(house.parked.records[1]) == list(range(10, 30))
    house = House(age_ms=0, pin_bytes=len(RECORD) * 20, policy="drop-oldest")
    house.application(1, 10, complete=30)
    house.readers.found = {"dispatch": 30}
    assert not house.run(*expected).refuse_all
    assert house.start >= 79
    assert sorted(house.parked.records[1]) == list(range(10, 30))


@pytest.mark.promise("pipeline-5")
def test_what_nobody_dispatches_is_held_back_for_applications_only() -> None:
    house = House(age_ms=0)
    house.application(1, 60, complete=0)
    house.run()
    assert house.start == 60
