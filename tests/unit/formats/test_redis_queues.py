"""The layout of durable queues in Redis: what scripts rely on, and what is refused. That rows of every kind are read
again is in tests/contracts/test_queue_store.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embermq.adapters.redis.slots import slot_of
from embermq.formats.redis_layout import LayoutError, name_in
from embermq.formats.redis_queues import (
    EndedQueue,
    decode_delayed,
    decode_entry,
    decode_group,
    decode_mark,
    decode_moved,
    decode_queue,
    encode_ended,
    encode_moved,
    encode_queue,
    moved_field,
    queue_fence,
    queue_keys,
    read_mark_field,
    read_progress,
)
from embermq.model.queue_rows import Move, QueueSettingsRow

ROW = QueueSettingsRow(3, "tasks/ü", b'{"partitions":10}', 10_001, is_paused=True)


def test_a_queue_shows_its_settings_and_begins_with_its_fence() -> None:
    value = encode_queue(ROW)
    assert value.startswith(queue_fence(3).encode())
    assert b'"settings":{"partitions":10}' in value
    assert decode_queue("k", value) == ROW


def test_what_is_left_of_a_deleted_queue_begins_with_its_fence_too() -> None:
    value = encode_ended(3, 42)
    assert value.startswith(queue_fence(3).encode())
    assert decode_queue("k", value) == EndedQueue(3, 42)


def test_a_queue_whose_settings_speak_of_an_end_is_no_deleted_one() -> None:
    row = QueueSettingsRow(3, "q", b'{"ended_at":1}', 1)
    assert decode_queue("k", encode_queue(row)) == row


@given(st.text(st.sampled_from("a/%{}ü"), min_size=1, max_size=12))
def test_all_keys_of_a_queue_are_in_one_slot(name: str) -> None:
    keys = queue_keys(name, "")
    assert len(set(keys.all)) == 8 and len({slot_of(key) for key in keys.all}) == 1
    assert name_in(keys.queue) == name


def test_what_came_from_another_queue_names_it() -> None:
    moves = [Move(5, 7, "g", 9, 1), Move(5, 8, "", 9, 2)]
    found = decode_moved("k", 9, moved_field(5, 12, 1).encode(), encode_moved(moves))
    assert (found.source, found.number, found.moves) == (5, 12, moves)


@pytest.mark.parametrize(
    "read",
    [
        lambda: decode_queue("q:s:{q}", b"nonsense"),
        lambda: decode_queue("q:s:{q}", b'{"generation":3,"epoch":0,"ended_at":"x"}'),
        lambda: decode_queue("q:s:{q}", encode_queue(ROW).replace(b'{"epoch":0,"gen', b'{ "epoch":0,"gen')),
        lambda: decode_group("q:g:{q}", 3, "g", b'{"number":"1"}'),
        lambda: decode_entry("q:e:{q}", 3, 7, b'{"partition":-1}'),
        lambda: decode_delayed("q:d:{q}", 3, 7, b"[]"),
        lambda: decode_mark("q:m:{q}", b"7:1", b'{"state":"DELIVERED"}'),
        lambda: read_mark_field("q:m:{q}", b"7"),
        lambda: decode_moved("q:p:{q}", 3, b"from:5", b"[]"),
        lambda: read_progress("q:p:{q}", {b"upto": b"x"}),
    ],
)
def test_what_is_broken_is_an_error_that_names_the_key(read: Callable[[], object]) -> None:
    with pytest.raises(LayoutError, match=r"key ['\"]q:\w:\{q\}"):
        read()
