"""Incoming QoS 2 messages on their way to Redis: few enough for one call of a script each."""

from __future__ import annotations

import json

from embermq.adapters.redis.session_writer import ROW_BYTES_MAX, ROWS_MAX, _received_parts
from embermq.formats.log_record import encode_record
from embermq.formats.redis_layout import encode_received
from embermq.model.message import Message


def test_only_the_last_part_is_complete() -> None:
    large = bytes(ROW_BYTES_MAX // 2 + 1)
    change = [(1, large), (2, large), (3, b""), *((number, b"x") for number in range(4, ROWS_MAX + 10))]
    parts = list(_received_parts(change))
    assert [is_last for _, is_last in parts] == [False] * (len(parts) - 1) + [True]
    assert [word for part, _ in parts for word in part] == [word for pair in change for word in pair]
    for part, _ in parts:
        assert len(part) <= 2 * ROWS_MAX
        assert sum(len(value) for value in part[1::2] if isinstance(value, bytes)) <= ROW_BYTES_MAX
    assert [part for part, _ in _received_parts([(9, bytes(2 * ROW_BYTES_MAX))])] == [
        [9, bytes(2 * ROW_BYTES_MAX)]
    ]


def test_what_a_person_finds_of_a_message_that_is_not_released() -> None:
    record = encode_record(Message("a/b", b"\x00\xff", 2, True, "ann", 5, 7))
    found = json.loads(encode_received(41, record))
    assert (found["offset"], found["topicName"], found["payload"]) == (41, "a/b", "AP8=")
    assert encode_received(41, b"") == b'{"offset":41}'
