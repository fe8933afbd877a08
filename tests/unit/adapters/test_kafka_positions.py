"""What this run wrote, and the sentence about what is survived."""

from __future__ import annotations

import pytest

from embermq.adapters.kafka import positions as kafka_positions
from embermq.adapters.kafka.log_topic import Durability
from embermq.adapters.kafka.positions import LogPositions
from embermq.model.position import position_of


def grown(ticks: int, records: int) -> LogPositions:
    """Each tick has `records` of 10 bytes."""
    positions = LogPositions(1_000)
    for tick in range(ticks):
        positions.advance(1_000 + (tick + 1) * records, 10 * records)
    return positions


def test_bytes_are_exact_at_ticks_and_in_proportion_between_them() -> None:
    positions = grown(10, 100)
    assert (positions.begun, positions.end, positions.ends()) == (1_000, 2_000, {0: 2_000})
    assert positions.bytes_from(1_000) == positions.bytes_from(0) == 10_000
    assert positions.bytes_from(1_550) == 4_500
    assert positions.bytes_from(2_000) == 0
    assert positions.position_keeping(4_500) == 1_550
    assert positions.position_keeping(10**9) == 1_000


def test_memory_is_bounded_and_the_ends_of_it_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_positions, "MARKS_MAX", 16)
    positions = grown(5_000, 64)
    assert len(positions._marks) <= 17
    assert positions.begun == 1_000
    for position in range(1_000, 1_000 + 5_000 * 64, 777):
        assert positions.bytes_from(position) == pytest.approx(10 * (positions.end - position), abs=1)


def test_partitions_that_were_left_out_have_nothing() -> None:
    positions = LogPositions(position_of(1, 7), {0: 90})
    positions.close_partition(3)
    assert positions.ends() == {0: 90, 1: 7, 2: 0, 3: 0}
    assert (positions.partition, positions.begun) == (3, positions.end)


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
