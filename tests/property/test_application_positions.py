"""Repeats in application logs: any crashes of the pipeline and of the reader, late records, reports at any moment."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from embermq.delivery.application.positions import SEGMENTS_MAX, OffsetRanges, Positions
from embermq.model.application_positions import StoredPositions
from embermq.model.position import position_of

PARTITIONS = 2
Source = tuple[int, int]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30))))
def test_ranges_are_a_set(steps: list[tuple[bool, int]]) -> None:
    ranges, model = OffsetRanges(), set[int]()
    for is_floor, offset in steps:
        if is_floor:
            ranges.forget_below(offset)
            model = {one for one in model if one >= offset}
        else:
            assert ranges.add(offset) is (offset not in model)
            model.add(offset)
        assert {one for one in range(-1, 32) if one in ranges} == model
        assert len(ranges) == sum(one - 1 not in model for one in model)


class Reading(RuleBasedStateMachine):
    """A message log with two partitions, the pipeline, one partition of an application log, its reader."""

    def __init__(self) -> None:
        super().__init__()
        self.message_log: list[list[bool]] = [[] for _ in range(PARTITIONS)]
        """Whether each record is wanted."""
        self.log: list[Source] = []
        self.checkpoint = [0] * PARTITIONS
        self.unwritten: list[Source] = []
        self.batch_end = [0] * PARTITIONS
        self.reported: dict[int, int] = {}
        self.heard: list[tuple[dict[int, int], int]] = []
        self.stored = StoredPositions()
        self.stored_settled: set[int] = set()
        self.settled_in_store: set[Source] = set()
        self.delivered: set[Source] = set()
        self.start()

    def start(self) -> None:
        """The reader begins from what is stored."""
        self.positions = Positions(self.stored, self.stored_settled, segment_records=2)
        self.next = self.stored.base_offset
        self.in_flight: list[int] = []
        self.settled = set(self.stored_settled)
        self.heard.clear()

    # The broker and the pipeline

    @rule(partition=st.integers(0, PARTITIONS - 1), wanted=st.lists(st.booleans(), min_size=1, max_size=4))
    def accept(self, partition: int, wanted: list[bool]) -> None:
        self.message_log[partition] += wanted

    @precondition(lambda self: not self.unwritten)
    @rule(data=st.data())
    def plan(self, data: st.DataObject) -> None:
        """After a crash a batch may end before what the one before had written."""
        for partition, records in enumerate(self.message_log):
            begin = self.checkpoint[partition]
            self.batch_end[partition] = end = data.draw(st.integers(begin, len(records)))
            self.unwritten += [(partition, offset) for offset in range(begin, end) if records[offset]]

    @precondition(lambda self: self.unwritten)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """In any order: what is left for later is a hole."""
        at = data.draw(st.integers(0, len(self.unwritten) - 1))
        self.log.append(self.unwritten.pop(at))

    @precondition(lambda self: not self.unwritten)
    @rule()
    def report(self) -> None:
        self.checkpoint = list(self.batch_end)
        self.reported = dict(enumerate(self.checkpoint))

    @precondition(lambda self: not self.unwritten)
    @rule(reports=st.booleans())
    def whole_batch(self, reports: bool) -> None:
        for partition, records in enumerate(self.message_log):
            begin, end = self.checkpoint[partition], len(records)
            self.batch_end[partition] = end
            self.log += [(partition, offset) for offset in range(begin, end) if records[offset]]
        if reports:
            self.report()

    @rule()
    def pipeline_crashes(self) -> None:
        self.unwritten.clear()
        self.batch_end = list(self.checkpoint)

    @rule(data=st.data())
    def checkpoint_is_lost(self, data: st.DataObject) -> None:
        self.checkpoint = [data.draw(st.integers(0, offset)) for offset in self.checkpoint]
        self.pipeline_crashes()

    # The reader

    @precondition(lambda self: self.next < len(self.log))
    @rule(count=st.integers(1, 5))
    def read(self, count: int) -> None:
        for at in range(self.next, min(self.next + count, len(self.log))):
            source = self.log[at]
            if self.positions.take(at, position_of(*source)):
                assert source not in self.settled_in_store, f"{source} comes again"
                assert source not in [self.log[other] for other in self.in_flight], f"{source} comes twice"
                self.delivered.add(source)
                self.in_flight.append(at)
            self.next = at + 1
        self.commit()

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        self.settled.add(self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1))))
        self.commit()

    def commit(self) -> None:
        self.positions.commit(min([*self.in_flight, self.next]))

    @rule()
    def hear(self) -> None:
        """The end is asked for after the report; the answer takes its time."""
        self.heard.append((dict(self.reported), len(self.log)))

    @precondition(lambda self: self.heard)
    @rule()
    def end_is_known(self) -> None:
        self.positions.complete(*self.heard.pop(0))

    @rule()
    def store(self) -> None:
        self.stored = self.positions.stored()
        committed = self.stored.committed_offset
        self.settled = {at for at in self.settled if at >= committed}
        self.stored_settled = set(self.settled)
        begin = self.stored.base_offset
        self.settled_in_store |= {self.log[at] for at in (*range(begin, committed), *self.stored_settled)}

    @rule(stores=st.booleans(), hears=st.booleans())
    def reader_crashes(self, stores: bool, hears: bool) -> None:
        if stores:
            self.store()
        self.start()
        if hears:
            self.hear()
            self.end_is_known()

    @invariant()
    def base_is_behind(self) -> None:
        positions = self.positions
        assert self.stored.base_offset <= positions.base_offset <= positions.committed_offset
        assert self.stored.committed_offset <= positions.committed_offset

    def teardown(self) -> None:
        """Everybody does their work: everything wanted has come, and nothing is remembered."""
        self.pipeline_crashes()
        for _ in range(2):
            self.whole_batch(reports=True)
            self.hear()
            self.read(len(self.log))
            self.settled.update(self.in_flight)
            self.in_flight.clear()
            self.commit()
            while self.heard:
                self.end_is_known()
            self.store()
        everything = {
            (partition, offset)
            for partition, records in enumerate(self.message_log)
            for offset, wanted in enumerate(records)
            if wanted
        }
        assert self.delivered == everything
        assert self.positions.remembered == 0
        assert self.stored.base_offset == self.stored.committed_offset == len(self.log)


Reading.TestCase.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=60)
TestReading = Reading.TestCase


def test_a_long_absence_of_reports_costs_no_more_than_the_positions() -> None:
    positions = Positions(segment_records=1)
    count = 40 * SEGMENTS_MAX
    for at in range(count):
        assert positions.take(at, position_of(at % 3, 5 * at))
        assert not positions.take(at, position_of(at % 3, 5 * at))
    positions.commit(count)
    assert positions.remembered == count
    assert positions.stored() == StoredPositions(0, count)
    half = dict.fromkeys(range(3), 5 * count // 2)
    positions.complete(half, count)
    assert positions.remembered == count // 2
    assert count // 4 <= positions.stored().base_offset <= count // 2
    assert positions.stored().floors == tuple(half.items())


def test_floors_wait_until_everything_before_the_end_is_settled() -> None:
    positions = Positions()
    for at in range(4):
        assert positions.take(at, position_of(0, at))
    positions.complete({0: 2}, 3)
    positions.complete({0: 3}, 4)
    positions.complete({0: 4}, 5)
    for committed, floor in ((2, ()), (3, ((0, 2),)), (4, ((0, 2),)), (5, ((0, 4),))):
        positions.commit(committed)
        assert positions.stored().floors == floor
    assert not positions.take(5, position_of(0, 1))
    assert positions.take(6, position_of(0, 4))
    positions.complete({0: 1}, 5)
    assert positions.stored().floors == ((0, 4),)


def test_what_stands_at_the_floor_is_read_again() -> None:
    positions = Positions(segment_records=1)
    for at in range(3):
        assert positions.take(at, position_of(0, at))
    positions.commit(3)
    positions.complete({0: 1}, 3)
    assert positions.stored() == StoredPositions(1, 3, ((0, 1),))
