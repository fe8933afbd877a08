"""The transforms of the log in Kafka: the rows of the embedded log, and nothing lost of what is broken."""

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.kafka_rows import (
    LOG_PREFIX,
    REJECTED,
    KafkaRow,
    as_headers,
    headers_of,
    kafka_rows,
    plain_headers,
    stamp_text,
)
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.pipeline.queries import log_rows

from embermq.formats.kafka_record import KafkaEncoder
from embermq.formats.log_record import Origin, Stamp, decode_record, slot_field
from embermq.mqtt.wire.properties import Properties, encode_properties
from embermq.pipeline.places import Places
from embermq.pipeline.rules.rows import rule_messages
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.schema import COPY
from embermq.pipeline.transforms.kafka_dispatch import dispatched
from embermq.pipeline.transforms.kafka_records import records_from_kafka

BILLING = Stamp(f"{LOG_PREFIX}billing", 7, 1, True, (1, 70_000))
AUDIT = Stamp(f"{LOG_PREFIX}audit", 9, 2)
EVERYTHING = Properties(
    payload_format_indicator=1,
    message_expiry_interval=4_000_000_000,
    content_type="text/ü",
    response_topic="re/ply",
    correlation_data=b"\0\xff",
    user_properties=(("k", "v"), ("k", ""), ("", "x" * 300)),
)
RECORDS = [
    record(stamps=(BILLING, AUDIT)),
    record("/leading", b"", qos=2, origin=Origin(3, 77)),
    record("ü/x", b"\xff\xfe", properties=EVERYTHING, expires_ms=NOON_MS + 1),
    record(properties=Properties(user_properties=tuple((f"k{i}", "v" * i) for i in range(20)))),
    record("$queue/tasks/ü", b"work"),
    record("$queue", b"none"),
    record(properties=Properties(), accepted_ms=NOON_MS + 999),
    record(stamps=tuple(Stamp(f"{LOG_PREFIX}app-{i}", i, i % 3) for i in range(30))),
]
BROKEN: list[tuple[str, bytes | None, list[tuple[str, bytes]]]] = [
    ("header v is missing", b"a", plain_headers(v=None)),
    ("header v cannot be understood: one", b"a", plain_headers(v=b"one")),
    ("format 2.0: this reader knows major 1", b"a", plain_headers(v=b"2.0")),
    ("header f cannot be understood: 43", b"a", plain_headers(f=b"43")),  # QoS 3
    ("header f cannot be understood: 1", b"a", plain_headers(f=b"1")),  # no protocol version
    ("header f is missing", b"a", plain_headers(f=None)),
    ("header t cannot be understood: 999999999999999", b"a", plain_headers(t=b"9" * 15)),
    ("header t is missing", b"a", plain_headers(t=None)),
    ("header c is missing", b"a", plain_headers(c=None)),
    ("header c cannot be understood: \ufffd", b"a", plain_headers(c=b"\xff")),
    ("header x cannot be understood: soon", b"a", plain_headers(x=b"soon")),
    ("header o cannot be understood: 7", b"a", plain_headers(o=b"7")),
    ("the key is no topic", None, plain_headers()),
    ("the key is no topic", b"\xff", plain_headers()),
    ("the key is no topic", b"", plain_headers()),
    ("a header is there twice that can be there once", b"a", [*plain_headers(), ("f", b"41")]),
    ("header v is missing", b"a", []),
    ("a header a cannot be understood: \ufffd;;", b"a", plain_headers([b"\xff;;"])),
    ("a header a cannot be understood: ", b"a", plain_headers([b""])),
    ("a header a cannot be understood: test.msg.all;1;1;", b"a", plain_headers([b"test.msg.all;1;1;"])),
    (
        "a header a cannot be understood: test.msg.app.x;1;1; test.msg.app.y;1;3;",
        b"a",
        plain_headers([b"test.msg.app.x;1;1;", b"test.msg.app.y;1;3;"]),
    ),
]
NO_VALUE = "there is no value; an empty payload is not none"
UNKNOWN = [("zz", b"\xff"), ("zz", b"2"), ("u77", b"of the embedded log")]
BROKEN_BLOCKS = {
    b"": "its length is not that of its properties",
    b"\x05\x01": "its length is not that of its properties",
    b"\x80\x80\x80\x80\x00": "its length is not that of its properties",
    b"\x02\x99\x01": "property 0x99 is not allowed",
    b"\x02\x01\x02": "property 0x01 is there twice or has a value that is not allowed",
    b"\x04\x01\x01\x01\x01": "property 0x01 is there twice or has a value that is not allowed",
    b"\x02\x02\x00": "property 0x02 ends after the block",
    b"\x04\x03\x00\x05x": "property 0x03 ends after the block",
    b"\x04\x03\x00\x01\xff": "property 0x03 is there twice or has a value that is not allowed",
    b"\x04\x08\x00\x01#": "property 0x08 is there twice or has a value that is not allowed",
    b"\x06\x26\x00\x01k\x00\x02": "property 0x26 ends after the block",
}


def in_kafka(offset: int, frame: bytes) -> KafkaRow:
    decoded = decode_record(frame)
    return 3, offset, decoded.message.topic.encode(), decoded.message.payload, headers_of(decoded)


@pytest.mark.promise("pipeline-6", "pipeline-8")
def test_both_logs_give_the_same_rows(spark: SparkSession, log: LogWriter, places: Places) -> None:
    log.append(RECORDS)
    source = kafka_rows(spark, [in_kafka(offset, frame) for offset, frame in enumerate(RECORDS)])
    ours = records_from_kafka(source, LOG_PREFIX).orderBy("offset")
    embedded = log_rows(spark, places, 0, len(RECORDS)).select(ours.columns).orderBy("offset")
    assert ours.dtypes == embedded.dtypes
    rows = [row.asDict(recursive=True) for row in ours.collect()]
    assert {row.pop("partition") for row in rows} == {3}
    wanted = [row.asDict(recursive=True) for row in embedded.drop("partition").collect()]
    assert rows == wanted and len(rows) == len(RECORDS)


@pytest.mark.promise("pipeline-4")
def test_what_cannot_be_understood_is_a_row_with_its_reason(spark: SparkSession) -> None:
    rows: list[KafkaRow] = [(1, i, key, b"%d" % i, headers) for i, (_, key, headers) in enumerate(BROKEN)]
    found = records_from_kafka(kafka_rows(spark, rows), LOG_PREFIX).orderBy("offset").collect()
    assert [row.error for row in found] == [reason for reason, _, _ in BROKEN]
    assert [row.body for row in found] == [row[3] for row in rows]
    assert all(
        row.topic is row.publisher is row.stamps is row.payload is row.accepted_at is None for row in found
    )


@pytest.mark.promise("cluster-21")
def test_a_copy_is_a_position_and_nothing_else_for_who_counts_records(spark: SparkSession) -> None:
    copy = KafkaEncoder().encode(record("cars/2", b"x", unknown_fields=(slot_field(1, 1 << 40),)))
    headers = [(name, value) for name, value in copy.headers if value is not None]
    rows: list[KafkaRow] = [
        (0, 3, b"a", b"own", plain_headers()),
        (0, 4, copy.key, copy.value, headers),
        (0, 5, b"a", b"none", None),
    ]
    source = kafka_rows(spark, rows)
    own, copied, bad = records_from_kafka(source, LOG_PREFIX, has_copies=True).orderBy("offset").collect()
    assert own.error is None and own.payload == b"own"
    known = {name: value for name, value in copied.asDict().items() if value is not None}
    assert known == {"partition": 0, "offset": 4, "span": 1, "error": COPY}
    assert bad.error == "header v is missing" and bad.body == b"none"
    records = records_from_kafka(source, LOG_PREFIX, has_copies=True)
    seen = rule_messages(records, "hot", RuleSettings(sql="SELECT"))
    assert [row["payload"] for row in seen.collect()] == ["own"], "rules see it where it was accepted"
    _, copied, _ = records_from_kafka(source, LOG_PREFIX).orderBy("offset").collect()
    assert copied.error is None and copied.payload == b"x"


@pytest.mark.promise("pipeline-4")
def test_properties_that_cannot_be_read_are_a_reason_too(spark: SparkSession) -> None:
    rows: list[KafkaRow] = [(0, i, b"a", b"", plain_headers(p=p)) for i, p in enumerate(BROKEN_BLOCKS)]
    found = records_from_kafka(kafka_rows(spark, rows), LOG_PREFIX).orderBy("offset").collect()
    assert [row.error for row in found] == [
        f"header p cannot be understood: {reason}" for reason in BROKEN_BLOCKS.values()
    ]


@pytest.mark.promise("pipeline-8")
def test_a_newer_minor_format_is_read_and_unknown_headers_are_carried(spark: SparkSession) -> None:
    row: KafkaRow = (0, 5, b"a/b", b"", [*plain_headers([stamp_text(BILLING)], v=b"1.12"), *UNKNOWN])
    source = kafka_rows(spark, [row])
    (read,) = records_from_kafka(source, LOG_PREFIX).collect()
    assert read.error is None and read.payload == b"" and read.payload_bytes == 0
    assert [(one.name, one.tag, one.value) for one in read.unknown_fields] == [
        ("zz", None, b"\xff"),
        ("zz", None, b"2"),
        (None, 77, b"of the embedded log"),
    ]
    (sent,) = dispatched(source, LOG_PREFIX, REJECTED, {}).collect()
    assert as_headers(sent.asDict())[4:7] == UNKNOWN and sent.value == b""


@pytest.mark.promise("pipeline-1", "application-3")
def test_dispatch_gives_each_log_its_own_stamp_and_the_position(spark: SparkSession) -> None:
    properties = encode_properties(EVERYTHING)
    headers = plain_headers([stamp_text(BILLING), stamp_text(AUDIT)], p=properties, s=b"9;9")
    source = kafka_rows(
        spark, [(2, 17, b"cars/1", b"\0hi", headers), (2, 18, b"cars/2", b"", plain_headers())]
    )
    rows = dispatched(source, LOG_PREFIX, REJECTED, {}).collect()
    carried = plain_headers(p=properties)
    assert [(row.topic, row.key, row.value, as_headers(row.asDict())) for row in rows] == [
        (stamp.log, b"cars/1", b"\0hi", [*carried, ("a", stamp_text(stamp)), ("s", b"2;17")])
        for stamp in (BILLING, AUDIT)
    ]


@pytest.mark.promise("pipeline-4")
def test_dispatch_sends_what_is_broken_to_the_rejected_records_once(spark: SparkSession) -> None:
    rows: list[KafkaRow] = [(1, i, key, b"%d" % i, headers) for i, (_, key, headers) in enumerate(BROKEN)]
    rows += [(1, 90, b"a", b"no headers", None), (1, 91, b"a", None, plain_headers())]
    found = dispatched(kafka_rows(spark, rows), LOG_PREFIX, REJECTED, {}).collect()
    assert {row.topic for row in found} == {REJECTED}
    reasons = [*(reason for reason, _, _ in BROKEN), "header v is missing", NO_VALUE]
    for row, (_, offset, key, value, headers), reason in zip(found, rows, reasons, strict=True):
        assert (row.key, row.value) == (key, value)
        assert as_headers(row.asDict()) == [*(headers or []), ("s", b"1;%d" % offset), ("r", reason.encode())]


def test_dispatch_rejects_stamps_for_a_log_that_is_gone_and_no_later_one(spark: SparkSession) -> None:
    later = Stamp(BILLING.log, 8, 1)
    source = kafka_rows(
        spark,
        [
            (0, 1, b"a", b"1", plain_headers([stamp_text(BILLING), stamp_text(AUDIT)])),
            (0, 2, b"a", b"2", plain_headers([stamp_text(later)])),
        ],
    )
    rows = dispatched(source, LOG_PREFIX, REJECTED, {BILLING.log: 7}).collect()
    assert [(row.topic, row.value) for row in rows] == [
        (REJECTED, b"1"),
        (AUDIT.log, b"1"),
        (later.log, b"2"),
    ]
    assert as_headers(rows[0].asDict())[-3:] == [
        ("a", stamp_text(BILLING)),
        ("s", b"0;1"),
        ("r", f"the application log is gone: {BILLING.log}, generation 7".encode()),
    ]
