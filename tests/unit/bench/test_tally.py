"""Counting against a plain model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from embermq_bench.tally import GAP_MAX, Tally


@given(st.lists(st.integers(min_value=0, max_value=40), max_size=120), st.sets(st.integers(0, 50)))
def test_counts_equal_those_of_a_set(arrivals: list[int], wanted: set[int]) -> None:
    tally = Tally()
    seen: set[int] = set()
    duplicated = reordered = 0
    for sequence in arrivals:
        tally.accept(sequence)
        if sequence in seen:
            duplicated += 1
        elif seen and sequence < max(seen):
            reordered += 1
        seen.add(sequence)
    asked = bytearray(1 if sequence in wanted else 0 for sequence in range(51))
    assert tally.arrived == len(seen)
    assert tally.duplicated == duplicated
    assert tally.reordered == reordered
    assert tally.missing(asked) == len(wanted - seen)


def test_a_number_far_ahead_is_not_ours() -> None:
    tally = Tally()
    tally.accept(GAP_MAX + 1)
    assert tally.corrupt == 1
    assert not tally.seen


def test_nothing_is_missing_when_more_arrived_than_was_acknowledged() -> None:
    tally = Tally()
    for sequence in range(5):
        tally.accept(sequence)
    assert tally.missing(bytearray(b"\1\1\1")) == 0
    assert tally.missing(bytearray(b"\1\1\1\1\1\1")) == 1
