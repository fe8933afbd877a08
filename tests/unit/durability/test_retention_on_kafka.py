"""Who holds back a log in Kafka: the pipeline's queries, by the positions that they have published."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.support.stand_in_store import StandInLog, StandInParked, StandInStore

from embermq.durability.retention import NoEntries, PublishedReaders, Retention, RetentionLimits
from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.model.tick_writes import TickWrites
from embermq.ports.log_readers import LogReader
from embermq.ports.pipeline_progress import PipelineProgress

RECORD = encode_record(Message("t", b"x" * 100, 1, False, "p", 4, 0))


class Published(PipelineProgress):
    """What queries have said."""

    failing = ""

    def __init__(self) -> None:
        self.found: dict[str, dict[int, int]] = {}

    def positions(self, query: str) -> Mapping[int, int]:
        return self.found.get(query, {})

    def complete(self, query: str) -> Mapping[int, int]:
        return self.positions(query)


def passed(found: Mapping[int, int]) -> int:
    """Of a log of a hundred records."""
    return min(100, found.get(0, 0))


def test_what_queries_have_published_becomes_positions() -> None:
    published = Published()
    readers = PublishedReaders(published, passed, ("dispatch", "lake"))
    assert readers.positions() == []
    published.found["dispatch"] = {0: 20}
    published.found["other"] = {0: 1}
    assert readers.positions() == readers.positions() == [LogReader("dispatch", 20, 0)]
    published.found["lake"] = {1: 50}
    assert readers.positions() == [LogReader("dispatch", 20, 0), LogReader("lake", 0, 0)]


@pytest.mark.promise("pipeline-5")
def test_the_log_is_trimmed_behind_the_slowest_query_that_counts() -> None:
    published, store = Published(), StandInStore()
    for _ in range(100):
        store.submit(TickWrites(records=[RECORD]), lambda _: None)
        store.commit()
    limits = RetentionLimits(age_ms=0, kept_bytes=10**9, pin_bytes=10**9, budget_bytes=10**9, policy="refuse")
    log = StandInLog(store)
    readers = PublishedReaders(published, passed, ("dispatch", "lake"))
    retention = Retention(log, readers, NoEntries(), StandInParked(), limits)

    def run(*expected: str, floor: int = 100) -> int:
        retention.run(floor, expected, 10**6)
        store.submit(TickWrites(), lambda _: None)
        store.commit()
        return log.statistics().start_offset

    assert run("dispatch", "lake") == 0, "they have not said a word"
    published.found = {"dispatch": {0: 40}, "lake": {0: 19}}
    assert run("dispatch", "lake") == 19
    assert run("dispatch") == 40
    assert run("dispatch", floor=30) == 40
    state = retention.run(90, ("dispatch", "lake"), 10**6)
    assert [(pin.name, pin.next_offset) for pin in state.pins] == [
        ("lake", 19),
        ("dispatch", 40),
        ("dispatcher", 90),
    ]
