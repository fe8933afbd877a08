"""Who holds back a log in Kafka: the pipeline's queries, by the positions that they have published."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.support.stand_in_store import StandInLog, StandInParked, StandInStore

from embermq.durability.log_apart.retention import NoEntries, PublishedReaders
from embermq.durability.retention import Retention, RetentionLimits
from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.model.tick_writes import TickWrites
from embermq.ports.log_readers import LogReader
from embermq.ports.pipeline_progress import PipelineProgress
from embermq.ports.source_positions import SourcePositions

RECORD = encode_record(Message("t", b"x" * 100, 1, False, "p", 4, 0))


class Published(PipelineProgress):
    """What queries have said."""

    failing = ""

    def __init__(self) -> None:
        self.found: dict[str, dict[int, int]] = {}

    def positions(self, query: str) -> Mapping[int, int]:
        return self.found.get(query, {})


class EvenAndOdd(SourcePositions):
    """A hundred records, even numbers in partition 0 and odd ones in 1."""

    def __init__(self) -> None:
        self.asked = 0

    def positions_of(self, number: int) -> Mapping[int, int]:
        return {0: (number + 1) // 2, 1: number // 2}

    def number_of(self, positions: Mapping[int, int]) -> int:
        self.asked += 1
        return min(100, 2 * positions.get(0, 0), 2 * positions.get(1, 0) + 1)


def test_positions_become_numbers_and_are_asked_for_when_they_have_changed() -> None:
    published, log = Published(), EvenAndOdd()
    readers = PublishedReaders(published, log, ("dispatch", "lake"))
    assert readers.positions() == []
    published.found["dispatch"] = {0: 20, 1: 30}
    published.found["other"] = {0: 1}
    assert readers.positions() == readers.positions() == [LogReader("dispatch", 40, 0)]
    assert log.asked == 1
    published.found["dispatch"] = {0: 50, 1: 30}
    published.found["lake"] = {1: 50}
    assert readers.positions() == [LogReader("dispatch", 61, 0), LogReader("lake", 0, 0)]


@pytest.mark.promise("pipeline-5")
def test_the_log_is_trimmed_behind_the_slowest_query_that_counts() -> None:
    published, store = Published(), StandInStore()
    for _ in range(100):
        store.submit(TickWrites(records=[RECORD]), lambda _: None, lambda: None)
        store.commit()
    limits = RetentionLimits(age_ms=0, kept_bytes=10**9, pin_bytes=10**9, budget_bytes=10**9, policy="refuse")
    log = StandInLog(store)
    readers = PublishedReaders(published, EvenAndOdd(), ("dispatch", "lake"))
    retention = Retention(log, readers, NoEntries(), StandInParked(), limits)

    def run(*expected: str, floor: int = 100) -> int:
        retention.run(floor, expected, 10**6)
        store.submit(TickWrites(), lambda _: None, lambda: None)
        store.commit()
        return log.statistics().start_offset

    assert run("dispatch", "lake") == 0, "they have not said a word"
    published.found = {"dispatch": {0: 20, 1: 30}, "lake": {0: 15, 1: 9}}
    assert run("dispatch", "lake") == 19
    assert run("dispatch") == 40
    assert run("dispatch", floor=30) == 40
    state = retention.run(90, ("dispatch", "lake"), 10**6)
    assert [(pin.name, pin.next_offset) for pin in state.pins] == [
        ("lake", 19),
        ("dispatch", 40),
        ("dispatcher", 90),
    ]
