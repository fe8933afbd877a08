"""How messages come to a queue: numbers that are given once, partitions, deadlines, and what waits for its commit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.queue_bench import START_MS, TIMING
from tests.support.queue_writes import GatheredWrites

from embermq.model.queue_rows import DelayedRow, StoredQueue
from embermq.queues.intake import SEQUENCES_RESERVED, Intake
from embermq.queues.partitioner import partition_of_key
from embermq.queues.publication import Publication
from embermq.queues.settings import QueueSettings
from embermq.queues.values import Fate

TTL_MS = 7 * 24 * 3_600_000


def intake() -> tuple[Intake, GatheredWrites]:
    writes = GatheredWrites()
    found = Intake(7, QueueSettings(name="q"), TIMING, writes)
    found.store_row()
    return found, writes


def accepted(found: Intake, *, key: str | None = None, expires_ms: int = 0, **more: Any) -> int:
    return found.accept(Publication(key, **more), expires_ms, 3, START_MS).ticket


@pytest.mark.promise("queues-8", "queues-31")
def test_an_entry_has_a_number_a_partition_and_the_sooner_deadline() -> None:
    found, writes = intake()
    tickets = [accepted(found), accepted(found, key="k"), accepted(found, expires_ms=START_MS + 5)]
    assert tickets == [1, 2, 3] == list(found.pending) and found.next_sequence == 4
    rows = writes.take().entries
    assert [(row.record, row.offset) for row in rows.values()] == [(3, -1)] * 3
    assert [row.partition for row in rows.values()] == [1, partition_of_key("k", 10), 2], (
        "keyless ones in turn"
    )
    assert [row.expires_ms - START_MS for row in rows.values()] == [TTL_MS, TTL_MS, 5]
    row = found.new_row(40, "k", START_MS, record_bytes=0)
    assert (row.sequence, row.offset, row.partition) == (4, 40, partition_of_key("k", 10))
    assert 4 not in found.pending, "its record is there"


@pytest.mark.promise("queues-11", "queues-12")
def test_a_delayed_one_has_no_place_yet_and_a_withdrawn_one_leaves_nothing() -> None:
    found, writes = intake()
    later = found.accept(Publication(None, visible_ms=START_MS + 9), 5, 0, START_MS)
    assert later.fate is Fate.DELAYED
    assert writes.present.delayed[7, 1] == DelayedRow(7, 1, -1, 0, None, START_MS + 9, 5)
    ticket = accepted(found, dedup_id="once")
    assert found.dedup.knows("once", START_MS) and (7, "once") in writes.present.dedup_ids
    found.withdraw(ticket)
    found.withdraw(later.ticket)
    assert not found.pending and not found.dedup.knows("once", START_MS)
    assert accepted(found) == 3, "a number is given once"


@pytest.mark.promise("queues-34")
def test_no_number_is_given_again_after_a_start() -> None:
    found, writes = intake()
    assert accepted(found) == 1
    row = writes.take().queues[7]
    assert row.sequences_reserved == 1 + SEQUENCES_RESERVED
    for _ in range(SEQUENCES_RESERVED - 1):
        accepted(found)
    assert not writes.take().queues, "the row is written once for very many"
    assert accepted(found) == 1 + SEQUENCES_RESERVED and 7 in writes.take().queues
    again, _ = intake()
    delayed: tuple[DelayedRow, ...] = (DelayedRow(7, 5, 0, -1, None, START_MS, 0),)
    again.restore(StoredQueue(row, (), (), delayed, {}, {"seen": START_MS + 1}), 4)
    assert again.next_sequence == 1 + SEQUENCES_RESERVED
    assert len(again.delayed) == 1 and again.dedup.knows("seen", START_MS)
    delayed = (*delayed, DelayedRow(7, 90_000, 0, -1, None, START_MS, 0))
    again.restore(StoredQueue(row, (), (), delayed, {}, {}), 4)
    assert again.next_sequence == 90_001
    again.restore(StoredQueue(row, (), (), delayed, {}, {}), 95_000)
    assert again.next_sequence == 95_001


@pytest.mark.promise("queues-39")
def test_what_may_be_delivered_is_measured() -> None:
    found, _ = intake()
    accepted(found)
    accepted(found, visible_ms=START_MS + 9)
    number = found.new_row(0, None, START_MS + 20, record_bytes=0).sequence
    for sequence in (1, 2, number):
        found.latency.delivered(sequence, START_MS + 30)
    assert (found.latency.count, found.latency.total_ms) == (2, 40), "not the one that waits for its time"
    assert found.arrivals.time_of(1) == START_MS


def test_rows_are_of_the_settings_that_are() -> None:
    found, writes = intake()
    found.settings = QueueSettings(name="q", partitions=1)
    accepted(found)
    (row,) = writes.take().entries.values()
    assert row.partition == 0
