"""Messages in columns, beside a plain dictionary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embermq.queues.deadlines import Deadlines
from embermq.queues.entries import BLOCK, Entries, QueueEntry
from embermq.queues.sequence_line import SequenceLine

SEQUENCES = st.integers(1, 4 * BLOCK) | st.integers(2**40, 2**40 + 3)
ENTRIES = st.builds(
    QueueEntry,
    st.integers(0, 999),
    st.integers(0, 2**50),
    st.none() | st.sampled_from(["", "a", "é"]),
    st.integers(0, 2**45),
)


@given(st.lists(st.tuples(SEQUENCES, st.none() | ENTRIES), max_size=60), st.lists(SEQUENCES, max_size=10))
def test_columns_hold_what_a_dictionary_holds(
    steps: list[tuple[int, QueueEntry | None]], asked: list[int]
) -> None:
    """None takes a message away. Numbers come in any order, with any holes."""
    entries, model = Entries(), dict[int, QueueEntry]()
    for sequence, entry in steps:
        if entry is not None:
            if sequence not in model:
                entries.put(sequence, entry.partition, entry.offset, entry.expires_ms, entry.key)
                model[sequence] = entry
        elif sequence in model:
            assert entries.remove(sequence) == model.pop(sequence).offset
    assert dict(entries) == model
    assert list(entries) == sorted(model)
    assert len(entries) == len(model)
    for sequence in [*asked, *model]:
        assert (sequence in entries) == (sequence in model)
        assert entries.get(sequence) == model.get(sequence)
        for end in (sequence + 3 * BLOCK, 2**41):
            following = min((one for one in model if sequence <= one < end), default=end)
            assert entries.first_from(sequence, end) == following
        assert list(entries.after(sequence)) == sorted(one for one in model if one > sequence)
    for sequence, entry in model.items():
        assert entries.partition(sequence) == entry.partition
        assert entries.key(sequence) == entry.key
        assert entries.expires_ms(sequence) == entry.expires_ms
        assert entries.owed(sequence) == 0


def test_a_place_that_is_used_again_remembers_nothing() -> None:
    entries = Entries()
    entries.put(1, 1, 2, 3, "key")
    entries.put(2, 9, 9, 9, None)
    assert entries.owe(1, 1) == 1
    assert entries.owe(1, 1) == 2
    assert entries.owe(1, -1) == entries.owed(1) == 1
    entries.remove(1)
    with pytest.raises(KeyError):
        entries.remove(1)
    with pytest.raises(KeyError):
        entries[1]
    entries.put(1, 4, 5, 6, None)
    assert entries[1] == QueueEntry(4, 5, None, 6)
    assert entries.owed(1) == 0


def test_far_numbers_are_found_at_once() -> None:
    """After a start: what is below the first message costs nothing."""
    entries = Entries()
    entries.put(10**15, 0, 0, 5, None)
    assert entries.first_from(0, 10**16) == 10**15
    assert entries.first_from(0, 10**15) == 10**15
    assert Entries().first_from(0, 10**16) == 10**16


def test_a_gap_of_any_size_is_passed_at_once() -> None:
    """As a backup leaves one that was restored, with a message before it that stays."""
    entries = Entries()
    for sequence in (5, 30 * BLOCK, 10**15, 10**15 - 40 * BLOCK, 2 * 10**15):
        entries.put(sequence, 0, 0, 5, None)
    assert entries.first_from(6, 10**16) == 30 * BLOCK
    assert entries.first_from(30 * BLOCK + 1, 10**16) == 10**15 - 40 * BLOCK
    assert entries.first_from(10**15 - 10, 10**16) == 10**15
    assert entries.first_from(10**15 + 1, 10**16) == 2 * 10**15
    assert entries.first_from(2 * 10**15 + 1, 10**16) == 10**16


def test_the_end_of_messages_waits_for_one_that_is_still_to_come() -> None:
    entries, pending = Entries(), {2: "on its way"}
    deadlines = Deadlines(entries, pending)
    for sequence in (1, 3):
        entries.put(sequence, 0, 0, 10, None)
        deadlines.add(sequence, 10)
    assert deadlines.next_due_ms() is None
    assert deadlines.take_over(9, 4, 10) == []
    assert deadlines.next_due_ms() == 10
    assert deadlines.take_over(10, 4, 10) == [1]
    assert deadlines.take_over(10, 4, 10) == []
    del pending[2]
    entries.put(2, 0, 0, 10, None)
    deadlines.add(2, 10)
    assert deadlines.take_over(10, 4, 10) == [2, 3]
    assert deadlines.take_over(10, 4, 10) == []


@given(st.lists(st.integers(-50, 3_000), max_size=40))
def test_a_line_keeps_its_order(steps: list[int]) -> None:
    """A positive step appends so many, a negative one takes."""
    line, model, number = SequenceLine(), list[int](), 0
    for step in steps:
        for _ in range(step):
            line.append(number)
            model.append(number)
            number += 1
        for _ in range(min(-step * 60, len(model))):
            assert line.first() == model[0]
            assert line.popleft() == model.pop(0)
        assert len(line) == len(model)
    assert list(line) == model
    assert bool(line) == bool(model)
