"""The one layout of a record: round trip, truncation, fields of a newer writer."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.record_strategies import encoded, log_records

from embermq.formats.log_record import (
    FORMAT,
    HEAD,
    LogRecord,
    Origin,
    RecordError,
    Stamp,
    decode_record,
    decode_route,
    decode_stamps,
    encode_record,
    encode_stamps,
    iter_frames,
    may_have_stamps,
    record_expires_ms,
    seal_record,
)
from embermq.model.message import Message
from embermq.mqtt.wire.properties import Properties

records = log_records(st.integers(-(2**63), 2**63 - 1))


@given(records)
def test_a_record_comes_back_as_it_was(record: LogRecord) -> None:
    assert decode_record(encoded(record)) == record


@given(records)
def test_the_deadline_is_read_alone(record: LogRecord) -> None:
    assert record_expires_ms(encoded(record)) == record.message.expires_ms


@given(records)
def test_what_a_newer_writer_added_is_carried_on(record: LogRecord) -> None:
    assert encoded(decode_record(encoded(record))) == encoded(record)


@given(records)
def test_the_route_is_what_the_record_says(record: LogRecord) -> None:
    frame = encoded(record)
    route = decode_route(frame)
    message = record.message
    assert (route.topic, route.publisher, route.accepted_ms, route.payload_bytes) == (
        message.topic,
        message.publisher,
        message.accepted_ms,
        len(message.payload),
    )
    assert (route.flags & 3, bool(route.flags & 4), route.flags >> 3) == (
        message.qos,
        message.retain,
        message.version,
    )
    assert decode_stamps(route.stamps) == record.stamps


@given(st.lists(records, max_size=5))
def test_a_batch_is_cut_where_its_records_end(batch: list[LogRecord]) -> None:
    frames = [encoded(record) for record in batch]
    assert list(iter_frames(b"".join(frames))) == frames


@given(st.lists(records, max_size=5))
def test_a_batch_says_whether_it_has_stamps(batch: list[LogRecord]) -> None:
    frames = b"".join(map(encoded, batch))
    assert may_have_stamps(frames) == any(record.stamps for record in batch)
    assert not frames or may_have_stamps(frames[:-1]), "what does not look like a record may have some"


@given(st.binary(max_size=100))
def test_noise_may_have_stamps_or_has_none(noise: bytes) -> None:
    assert may_have_stamps(noise) in (True, False)


@given(records, st.data())
def test_every_truncation_is_told(record: LogRecord, data: st.DataObject) -> None:
    frame = encoded(record)
    cut = frame[: data.draw(st.integers(0, len(frame) - 1))]
    for decode in (decode_record, decode_route):
        with pytest.raises(RecordError):
            decode(cut)
    if cut:
        with pytest.raises(RecordError):
            list(iter_frames(cut))


def test_every_truncation_of_a_full_record_is_told() -> None:
    message = Message("a/b", b"payload", 2, True, "publisher", 5, 1, 2, Properties(content_type="c"))
    frame = encode_record(
        message, encode_stamps((Stamp("log", 1, 2, True, (1, 2)),)), Origin(1, 2), ((9, b"new"),)
    )
    for size in range(len(frame)):
        resized = (size - 4).to_bytes(4, "big") + frame[4:size] if size >= 4 else frame[:size]
        for cut in (frame[:size], resized):
            try:
                found = decode_record(cut)
            except RecordError:
                continue
            # Only the payload, which stands last and has no length of its own, may be shorter unnoticed.
            assert found.message.payload == message.payload[: len(found.message.payload)]
            assert cut is resized


@given(records, st.data())
def test_a_changed_byte_is_told_or_decoded_and_nothing_else(record: LogRecord, data: st.DataObject) -> None:
    frame = bytearray(encoded(record))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    for decode in (decode_record, decode_route):
        with suppress(RecordError):
            decode(bytes(frame))


@given(st.binary(max_size=200))
def test_noise_is_told_or_decoded(noise: bytes) -> None:
    for decode in (decode_record, decode_route):
        with suppress(RecordError):
            decode(noise)
    with suppress(RecordError):
        list(iter_frames(noise))


def test_a_newer_major_is_refused_by_number_and_a_newer_minor_is_read() -> None:
    message = Message("t", b"x", 1, False, "p", 5, 0)
    rest = encode_record(message)[HEAD.size :]
    assert decode_record(seal_record((FORMAT + 5, 1 | 5 << 3, 0), rest)).message == message
    for decode in (decode_record, decode_route):
        with pytest.raises(RecordError, match="0x20"):
            decode(seal_record((FORMAT + 0x10, 0, 0), rest))


@pytest.mark.promise("pipeline-8")
def test_one_flipped_bit_anywhere_is_found() -> None:
    whole = encode_record(Message("a/b", b"payload", 2, True, "p", 5, 1, 2), b"", Origin(1, 2))
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        for decode in (decode_record, decode_route):
            with pytest.raises(RecordError):
                decode(bytes(damaged))


@pytest.mark.parametrize("size", [0, 1, 65_535, 70_000, 1_000_000])
def test_payloads_of_any_size(size: int) -> None:
    message = Message("t" * 65_535, b"\xff" * size, 1, False, "p" * 65_535, 5, 0)
    assert decode_record(encode_record(message)).message == message


def test_long_texts_are_not_remembered() -> None:
    """500 topics of 60,000 bytes, with their bytes, would be 60 MB."""
    tracemalloc.start()
    for number in range(500):
        encode_record(Message(f"{number:060000}", b"", 0, False, f"{number:060000}", 5, 0, 0, None))
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < 2_000_000
