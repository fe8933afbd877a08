"""The headers of a record in Kafka: golden ones, the way there and back, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.record_strategies import encoded
from tests.support.source_header import encode_source
from tests.unit.formats.test_log_record import records

from embermq.formats.kafka_record import (
    Header,
    KafkaEncoder,
    KafkaFrame,
    KafkaRecord,
    decode_frame,
    decode_kafka_record,
    kafka_bytes,
    read_source,
)
from embermq.formats.log_record import (
    FIELD_HEADER,
    LogRecord,
    Origin,
    RecordError,
    Stamp,
    decode_record,
    encode_record,
    encode_stamps,
)
from embermq.model.message import Message
from embermq.model.position import position_of
from embermq.mqtt.wire.properties import Properties

PLAIN: list[Header] = [("v", b"1.0"), ("f", b"33"), ("t", b"1700000000123"), ("c", b"pump-1")]
log_names = st.from_regex(r"[a-zA-Z0-9._-]{1,30}", fullmatch=True)
named_stamps = st.lists(
    st.builds(
        Stamp,
        log=log_names,
        generation=st.integers(-(2**63), 2**63 - 1),
        qos=st.integers(0, 2),
        retain_as_published=st.booleans(),
        subscription_identifiers=st.lists(st.integers(1, 0xFFFF_FFFF), max_size=5).map(tuple),
    ),
    max_size=4,
).map(tuple)
header_names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=9
)
foreign = st.lists(
    st.tuples(
        header_names.filter(lambda name: name not in set("vftcpxosma")), st.none() | st.binary(max_size=9)
    ),
    max_size=4,
)


def test_a_plain_record_looks_like_this() -> None:
    frame = encode_record(Message("plant/1", b"\x00payload", 1, False, "pump-1", 4, 1_700_000_000_123))
    outgoing = KafkaEncoder().encode(frame)
    assert (outgoing.key, outgoing.value, outgoing.timestamp_ms) == (
        b"plant/1",
        b"\x00payload",
        1_700_000_000_123,
    )
    assert outgoing.headers == PLAIN


def test_a_record_with_everything_looks_like_this() -> None:
    message = Message("ä", b"", 2, True, "ünï", 5, 5, 6_005, Properties(content_type="json"))
    stamps = (Stamp("embermq.msg.app.a1", 12, 2, True, (1, 268_435_455)), Stamp("embermq.msg.app.b", 3, 0))
    frame = encode_record(message, encode_stamps(stamps), Origin(12, 65_535), ((9, b"new"),))
    outgoing = KafkaEncoder().encode(frame)
    assert (outgoing.key, outgoing.value, outgoing.timestamp_ms) == ("ä".encode(), b"", 5)
    assert outgoing.headers == [
        ("v", b"1.0"),
        ("f", b"46"),
        ("t", b"5"),
        ("c", "ünï".encode()),
        ("p", b"\x07\x03\x00\x04json"),
        ("x", b"6005"),
        ("a", b"embermq.msg.app.a1;12;6;1,268435455"),
        ("a", b"embermq.msg.app.b;3;0;"),
        ("o", b"12;65535"),
        ("u9", b"new"),
    ]


def test_stamps_get_the_names_of_their_topics() -> None:
    frame = encode_record(Message("a", b"", 1, False, "p", 4, 1), encode_stamps((Stamp("räuber", 1, 1),)))
    encoder = KafkaEncoder({"räuber": "e.msg.app.x"}.__getitem__)
    assert encoder.encode(frame).headers[-1] == ("a", b"e.msg.app.x;1;1;")
    with pytest.raises(RecordError, match="räuber"):
        KafkaEncoder().encode(frame)


@given(records, named_stamps)
def test_a_record_comes_back_as_it_was(record: LogRecord, stamps: tuple[Stamp, ...]) -> None:
    record = msgspec.structs.replace(record, stamps=stamps)
    frame = encoded(record)
    outgoing = KafkaEncoder().encode(frame)
    assert decode_frame(outgoing.key, outgoing.value, outgoing.headers) == KafkaFrame(frame)
    found = decode_kafka_record(outgoing.key, outgoing.value, outgoing.headers)
    assert (found.record, found.source) == (record, None)
    with pytest.raises(RecordError, match="no header s"):
        read_source(outgoing.headers)


@given(
    st.lists(
        st.tuples(st.sampled_from([*"vftcas", "p", "x", "o"]), st.none() | st.binary(max_size=4)),
        max_size=3,
    ),
    st.sampled_from([b"a/b", b"\xff", b""]),
)
def test_the_short_way_of_plain_records_comes_to_the_same(headers: list[Header], key: bytes) -> None:
    stamped = [*PLAIN, ("a", b"e.msg.app.x;1;1;"), ("s", b"3;70")]
    for listed in (PLAIN, stamped, [*PLAIN, *headers], headers):
        assert _told(decode_kafka_record, key, listed) == _told(_the_long_way, key, listed)


def _the_long_way(key: bytes, value: bytes, headers: list[Header]) -> KafkaRecord:
    found = decode_frame(key, value, headers)
    return KafkaRecord(decode_record(found.frame), found.source)


def _told(
    decode: Callable[[bytes, bytes, list[Header]], KafkaRecord], key: bytes, headers: list[Header]
) -> KafkaRecord | None:
    try:
        return decode(key, b"x", headers)
    except RecordError:
        return None


@given(foreign)
def test_headers_of_others_are_carried_on(headers: list[Header]) -> None:
    found = decode_frame(b"a", b"x", [*PLAIN, *headers])
    again = KafkaEncoder().encode(found.frame)
    assert again.headers == [*PLAIN, *headers]
    assert len(decode_record(found.frame).unknown_fields) == len(headers)


def test_a_field_that_looks_like_a_header_of_ours_stays_a_field() -> None:
    field = (FIELD_HEADER, b"\x00\x01f12")
    frame = encode_record(Message("a", b"", 1, False, "p", 4, 1), b"", None, (field,))
    outgoing = KafkaEncoder().encode(frame)
    assert outgoing.headers[-1] == ("u255", b"\x00\x01f12")
    assert decode_frame(outgoing.key, outgoing.value, outgoing.headers).frame == frame


def test_a_copy_says_where_the_record_stands() -> None:
    found = decode_frame(b"a", b"x", [*PLAIN, encode_source(position_of(3, 2**40))])
    assert found.source == position_of(3, 2**40)
    assert read_source([*PLAIN, ("s", b"3;70")]) == position_of(3, 70)
    assert decode_record(found.frame).unknown_fields == ()
    assert decode_kafka_record(b"a", b"x", [*PLAIN, ("s", b"0;0")]).source == 0


def test_a_newer_minor_is_read_and_a_newer_major_refused_by_number() -> None:
    newer: list[Header] = [("v", b"1.7"), *PLAIN[1:], ("new", b"thing")]
    assert decode_kafka_record(b"a", b"x", newer).record.message.topic == "a"
    with pytest.raises(RecordError, match=r"format 2\.0.*major 1"):
        decode_frame(b"a", b"x", [("v", b"2.0"), ("f", b"not one")])


REFUSED: list[tuple[str, bytes | None]] = [
    *[("v", value) for value in (None, b"", b"1", b"one.0", b"1.", b"9" * 99 + b".0")],
    *[("f", value) for value in (None, b"", b"256", b"35", b"0", b"48", b"-33")],
    *[("t", value) for value in (None, b"", b"x", b"9" * 19)],
    *[("c", value) for value in (None, b"\xff", b"c" * 65_536)],
    *[("p", value) for value in (None, b"", b"\x05\x03", b"\x02\x99\x00")],
    *[("x", value) for value in (None, b"", b"soon", b"-" + b"9" * 19)],
    *[("o", value) for value in (None, b"", b"1", b"1;", b";1", b"1;65536", b"1;-1", b"9" * 19 + b";1")],
    *[("s", value) for value in (None, b"", b"1", b"-1;0", b"0;-1", b"0;" + b"9" * 19, b"2147483648;0")],
    *[
        ("a", value)
        for value in (
            None,
            b"",
            b"log;1;1",
            b";1;1;",
            b"l og;1;1;",
            b"log;x;1;",
            b"log;1;3;",
            b"log;1;7;",
            b"log;1;01;",
            b"log;1;1;,",
            b"log;1;1;-5",
            b"log;1;1;4294967296",
            b"log;1;1;" + b",".join([b"1"] * 256),
            b"log;1;1;;",
        )
    ],
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_header_that_cannot_be_understood_is_refused_by_name(name: str, value: bytes | None) -> None:
    headers = [header for header in PLAIN if header[0] != name] + [(name, value)]
    with pytest.raises(RecordError) as refused:
        decode_kafka_record(b"a", b"x", headers)
    if name != "p" or value is None:
        assert f"header {name}" in str(refused.value)
    if value and name != "p" and len(value) < 40:
        assert repr(value)[1:] in str(refused.value) or value.decode("ascii", "replace") in str(refused.value)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("name", ["v", "f", "t", "c"])
def test_a_header_that_is_missing_or_there_twice_is_refused_by_name(name: str) -> None:
    with pytest.raises(RecordError, match=f"header {name}"):
        decode_frame(b"a", b"x", [header for header in PLAIN if header[0] != name])
    with pytest.raises(RecordError, match=f"header {name} .*twice"):
        decode_frame(b"a", b"x", [*PLAIN, *[header for header in PLAIN if header[0] == name]])


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        (None, b"x", "key"),
        (b"", b"x", "key"),
        (b"\xff", b"x", "key"),
        (b"a", None, "value"),
        (b"a" * 65_536, b"", "65536"),
    ],
)
def test_a_record_without_topic_or_payload_is_refused(
    key: bytes | None, value: bytes | None, word: str
) -> None:
    with pytest.raises(RecordError, match=word):
        decode_frame(key, value, PLAIN)
    with pytest.raises(RecordError, match="header"):
        decode_frame(b"a", b"x", None)


@given(
    st.lists(
        st.tuples(st.sampled_from([*"vnftcpxosa", "u7", "z"]), st.none() | st.binary(max_size=12)),
        max_size=12,
    ),
    st.binary(max_size=9),
)
def test_noise_is_told_or_decoded(headers: list[Header], key: bytes) -> None:
    for noise in (headers, [*PLAIN, *headers]):
        try:
            decode_kafka_record(key, b"", noise)
        except RecordError:
            continue


@given(records, st.data())
def test_every_truncation_is_told_or_encoded(record: LogRecord, data: st.DataObject) -> None:
    """The log hands over whole records; whatever else comes must not end as another exception."""
    frame = encoded(record)
    cut = frame[: data.draw(st.integers(0, len(frame) - 1))]
    try:
        KafkaEncoder(lambda _: "log").encode(cut)
    except RecordError:
        return


def test_the_size_of_a_record_is_not_underrated() -> None:
    frame = encode_record(Message("a" * 100, b"x" * 1000, 1, False, "c" * 50, 4, 2**40))
    assert 1_200 < kafka_bytes(KafkaEncoder().encode(frame)) < 1_400
