"""Numbers and offsets that this run wrote, and the sentence about what is survived."""

from __future__ import annotations

import pytest

from embermq.adapters.kafka import positions as kafka_positions
from embermq.adapters.kafka.log_topic import Durability
from embermq.adapters.kafka.positions import LogPositions


def grown(ticks: int, records: int) -> LogPositions:
    """Each tick has `records` of 10 bytes, all in partition tick % 2."""
    positions = LogPositions(1_000, [50, 70])
    for tick in range(ticks):
        partition = tick % 2
        last = positions.next_offset(partition) + records - 1
        positions.advance(1_000 + (tick + 1) * records, {partition: last}, 10 * records)
    return positions


def test_marks_are_exact_at_ticks_and_never_behind() -> None:
    positions = grown(10, 100)
    assert (positions.end().number, positions.end().offsets) == (2_000, (550, 570))
    assert positions.before(999) is None
    first = positions.before(1_000)
    assert first is not None and (first.number, first.offsets) == (1_000, (50, 70))
    for number in range(1_000, 2_000):
        mark = positions.before(number)
        assert mark is not None
        tick = (mark.number - 1_000) // 100
        assert mark.number <= number
        assert mark.offsets == (50 + (tick + 1) // 2 * 100, 70 + tick // 2 * 100)
    assert positions.before(5_000) == positions.end()
    assert positions.bytes_from(1_000) == positions.bytes_from(0) == 10_000
    assert positions.bytes_from(1_550) == 4_500
    assert positions.bytes_from(2_000) == 0


def test_memory_is_bounded_and_the_ends_of_it_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_positions, "MARKS_MAX", 16)
    positions = grown(5_000, 64)
    assert len(positions._marks) <= 17
    assert positions.first().number == 1_000
    for number in range(1_000, 1_000 + 5_000 * 64, 777):
        mark = positions.before(number)
        assert mark is not None and mark.number <= number
        assert number - mark.number < 5_000 * 64 / 4


@pytest.mark.parametrize(
    ("replicas", "in_sync", "unclean", "survived", "words"),
    [
        (1, 1, False, 0, "lost with its disk"),
        (1, 1, True, 0, "lost with its disk"),
        (3, 1, False, 0, "lost with the leader's disk"),
        (3, 2, False, 1, "survives the loss of 1 server; with more than 1 away, publishes wait"),
        (5, 3, False, 2, "survives the loss of 2 servers; with more than 2 away"),
        (3, 3, False, 2, "survives the loss of 2 servers; with more than 0 away"),
        (3, 2, True, 0, "unclean leader election on"),
    ],
)
def test_what_is_survived_is_said(
    replicas: int, in_sync: int, unclean: bool, survived: int, words: str
) -> None:
    durability = Durability("e.msg.all", replicas, in_sync, unclean)
    assert durability.losses_survived == survived
    assert words in str(durability)
    assert str(durability).startswith(f"e.msg.all: {replicas} cop")


@pytest.mark.parametrize(
    ("offset", "count", "there"),
    [(0, 9, 9), (0, 10, 110), (5, 4, 9), (5, 30, 135), (60, 3, 113), (110, 3, 113)],
)
def test_so_many_records_behind_an_offset_are_counted_without_fillers(
    offset: int, count: int, there: int
) -> None:
    positions = LogPositions(1_000, [200, 50], filled=((10, 110), (50, 50)))
    assert positions.beyond(0, offset, count) == there
    assert positions.beyond(1, offset, count) == offset + count
    assert positions.fillers_from(0, 0) == 100
