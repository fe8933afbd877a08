"""Reading the message log: bounds, cuts, gaps, and what cannot be understood."""

import struct
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadMaxRows
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.pipeline.queries import log_rows

from embermq.formats.log_record import (
    HEAD,
    Origin,
    RecordError,
    Stamp,
    decode_record,
    decode_route,
    encode_stamps,
    seal_record,
)
from embermq.mqtt.wire.properties import Properties
from embermq.pipeline.places import Places
from embermq.pipeline.schema import MISSING, Columns, record_schema
from embermq.pipeline.sources.log_file import Counted, LogBounds, LogFile
from embermq.pipeline.sources.message_log import UNBOUNDED, Offer, Pace, Stamped, offer
from embermq.pipeline.sources.record_rows import read_rows

STAMPS = (Stamp("billing", 7, 1, True, (1, 300)), Stamp("audit", 9, 0))
PROPERTIES = Properties(
    content_type="text/plain", user_properties=(("a", "b"), ("a", "c")), correlation_data=b"\1"
)
FULL = record(
    "cars/1/speed",
    b"\xff\x00",
    stamps=STAMPS,
    qos=2,
    properties=PROPERTIES,
    expires_ms=NOON_MS + 5_000,
    origin=Origin(3, 77),
    unknown_fields=((200, b"later"),),
)


def read(log: LogWriter, start: int, end: int, columns: Columns = "route") -> list[dict[str, object]]:
    schema = to_arrow_schema(record_schema(columns), timezone="UTC")
    batches = list(read_rows(LogFile(log.path), start, end, schema))
    rows: list[dict[str, object]] = pa.Table.from_batches(batches, schema).to_pylist()
    return rows


def covered(rows: list[dict[str, object]]) -> list[int]:
    """The offsets of rows that have no error."""
    spans = [(int(str(row["offset"])), int(str(row["span"]))) for row in rows if not row["error"]]
    return [offset for begin, span in spans for offset in range(begin, begin + span)]


def test_no_folder_and_an_empty_folder_mean_no_data_yet(tmp_path: Path) -> None:
    missing = LogFile(tmp_path / "log")
    assert missing.bounds() is None and missing.bounded_end(0, 10, 1000) == 0
    (tmp_path / "log").mkdir()
    assert missing.bounds() is None
    writer = LogWriter(tmp_path)
    assert missing.bounds() == LogBounds(0, 0)
    writer.append([record()] * 3)
    assert missing.bounds() == LogBounds(0, 3)


@pytest.mark.promise("pipeline-7")
def test_a_batch_is_bounded_in_records_and_in_bytes(log: LogWriter) -> None:
    for _ in range(10):
        log.append([record()] * 5)
    size = len(record()) * 5
    file = LogFile(log.path)
    assert file.bounded_end(0, 1_000, UNBOUNDED) == 50
    assert file.bounded_end(0, 7, UNBOUNDED) == 7
    assert file.bounded_end(7, 10, UNBOUNDED) == 17
    assert file.bounded_end(48, 10, UNBOUNDED) == 50
    assert file.bounded_end(0, 1_000, size * 3) == 15
    assert file.bounded_end(0, 1_000, 1) == 5, "one batch of the log is always taken"
    assert file.bounded_end(50, 10, UNBOUNDED) == 50


@pytest.mark.promise("pipeline-7")
def test_a_batch_ends_where_it_would_if_all_of_it_were_counted_at_each_look(log: LogWriter) -> None:
    counted, file, size = Counted(), LogFile(log.path), len(record())
    for number in range(40):
        log.append([record()] * (number % 4 + 1))
        for start in (0, 30) if number == 20 else (30,) if number > 20 else (0,):
            limits = 45, 50 * size
            assert file.bounded_end(start, *limits, counted) == file.bounded_end(start, *limits)


def test_one_record_a_tick_is_bounded_too(log: LogWriter) -> None:
    for _ in range(20):
        log.append([record()])
    assert LogFile(log.path).bounded_end(3, 10, UNBOUNDED) == 13


def test_cuts_cover_every_offset_once(log: LogWriter) -> None:
    for size in (3, 8, 1, 30, 2):
        log.append([record()] * size)
    pieces = LogFile(log.path).split(1, 44, 2)
    assert len(pieces) == 2
    assert [offset for start, end in pieces for offset in range(start, end)] == list(range(1, 44))


@pytest.mark.parametrize("columns", ["route", "all"])
def test_every_offset_comes_once_and_in_order(log: LogWriter, columns: Columns) -> None:
    for size in (3, 1, 5):
        log.append([record()] * size)
    assert covered(read(log, 2, 8, columns)) == [2, 3, 4, 5, 6, 7]


@pytest.mark.promise("pipeline-7")
def test_records_without_stamps_are_one_row_where_stamps_are_asked_for(log: LogWriter) -> None:
    owed, damaged = record("ok", stamps=STAMPS), record("ok")[:-1] + b"?"
    log.append([record()] * 3 + [owed, owed])
    log.append([record()] * 2)
    log.append([damaged, record(), record()])
    log.append([record(), owed])
    rows = read(log, 0, 12)
    assert [(row["offset"], row["span"], bool(row["stamps"]), bool(row["error"])) for row in rows] == [
        (0, 3, False, False),
        (3, 1, True, False),
        (4, 1, True, False),
        (5, 2, False, False),
        (7, 1, False, True),
        (8, 3, False, False),
        (11, 1, True, False),
    ]


@pytest.mark.promise("pipeline-5", "pipeline-4")
def test_a_trimmed_range_is_a_row_that_says_so(log: LogWriter) -> None:
    for _ in range(4):
        log.append([record()] * 5)
    log.trim_below(10)
    rows = read(log, 2, 12)
    assert (rows[0]["offset"], rows[0]["span"]) == (2, 8)
    assert str(rows[0]["error"]).startswith(MISSING)
    assert covered(rows) == [10, 11]


def test_a_damaged_header_of_a_file_keeps_nobody_from_its_records(log: LogWriter) -> None:
    for _ in range(4):
        log.append([record()] * 5)
    third, last = sorted(log.path.glob("*.seg"))[2:]
    for path, junk in ((third, b"\xff" * 12), (last, bytes(len(last.read_bytes())))):
        with path.open("r+b") as file:
            file.seek(20)
            file.write(junk)
    found = LogFile(log.path)
    assert found.bounds() == LogBounds(0, 20)
    assert found.bounded_end(3, 100, 1_000_000) == 15 and found.bounded_end(15, 100, 1_000_000) == 20
    rows = read(log, 3, 20)
    assert covered(rows) == list(range(3, 15)), "the last file has nothing that could be read"
    assert str(rows[-1]["error"]).startswith(MISSING) and rows[-1]["span"] == 5
    assert not any(row["error"] for row in rows[:-1])


def test_an_emptied_log_keeps_its_end(log: LogWriter) -> None:
    log.append([record()] * 5)
    log.trim_below(5)
    assert LogFile(log.path).bounds() == LogBounds(5, 5)
    assert [(row["offset"], row["span"]) for row in read(log, 3, 5)] == [(3, 2)]


@pytest.mark.promise("pipeline-4")
@pytest.mark.parametrize("columns", ["route", "all"])
@pytest.mark.parametrize(
    ("poison", "reason"),
    [
        (struct.pack(">IBBq", 10, 0x10, 1, NOON_MS), "no record"),
        (seal_record((0x20, 1, NOON_MS), bytes(2)), "record format 0x20"),
        (seal_record((0x10, 1, NOON_MS), b"\0\2\xff\xff" + record("ok")[HEAD.size + 4 :]), "cannot decode"),
        (record("ok")[:-1] + b"?", "is damaged"),
        (record(accepted_ms=1 << 60), "time"),
    ],
    ids=["short", "format", "text", "damaged", "time"],
)
def test_a_poison_record_becomes_a_row_with_its_reason(
    log: LogWriter, columns: Columns, poison: bytes, reason: str
) -> None:
    log.append([record(), poison, record()])
    rows = read(log, 0, 3, columns)
    assert [bool(row["error"]) for row in rows] == [False, True, False]
    assert reason in str(rows[1]["error"])
    if "body" in rows[1]:
        assert rows[1]["body"] == poison


@pytest.mark.promise("pipeline-4")
def test_a_torn_batch_gives_what_can_be_read_and_one_row_for_the_rest(log: LogWriter) -> None:
    log.append([record(), record()[:-3]], count=2)
    log.append([record()], count=3)
    log.append([record()])
    rows = read(log, 0, 6)
    assert [(row["offset"], row["span"], bool(row["error"])) for row in rows] == [
        (0, 1, False),
        (1, 1, True),
        (2, 1, False),
        (3, 2, True),
        (5, 1, False),
    ]


@pytest.mark.parametrize(
    "frame", [record(), FULL, record(stamps=STAMPS), record("a", b"", properties=PROPERTIES)]
)
def test_routing_and_decoding_see_the_same(frame: bytes) -> None:
    head, whole = decode_route(frame), decode_record(frame)
    assert (head.topic, head.publisher) == (whole.message.topic, whole.message.publisher)
    assert head.flags & 3 == whole.message.qos and head.accepted_ms == whole.message.accepted_ms
    assert head.payload_bytes == len(whole.message.payload)
    assert head.stamps == encode_stamps(whole.stamps)


@pytest.mark.promise("pipeline-4")
def test_routing_refuses_every_truncation_that_decoding_refuses() -> None:
    for length in range(4, len(FULL)):
        cut = struct.pack(">I", length - 4) + FULL[4:length]
        try:
            decode_record(cut)
        except RecordError:
            with pytest.raises(RecordError):
                decode_route(cut)
        else:
            assert decode_route(cut).payload_bytes == 2 - (len(FULL) - length)


@pytest.mark.promise("pipeline-8")
def test_every_field_is_a_column_and_unknown_ones_are_carried(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    log.append([FULL, record("plain")])
    first, second = log_rows(spark, places, 0, 2).orderBy("offset").collect()
    assert (first.topic, first.root, first.qos, first.retain) == ("cars/1/speed", "cars", 2, False)
    assert (first.publisher, first.version, first.payload) == ("car-1", 5, b"\xff\x00")
    assert first.accepted_at.timestamp() * 1000 == NOON_MS
    assert first.expires_at.timestamp() * 1000 == NOON_MS + 5_000
    assert (first.content_type, first.correlation_data) == ("text/plain", b"\1")
    assert [tuple(pair) for pair in first.user_properties] == [("a", "b"), ("a", "c")]
    assert tuple(first.origin) == (3, 77)
    assert [tuple(field) for field in first.unknown_fields] == [(200, b"later", None)]
    assert [tuple(stamp) for stamp in first.stamps] == [
        ("billing", 7, 1, True, [1, 300]),
        ("audit", 9, 0, False, []),
    ]
    assert (
        second.stamps == [] and second.origin is None and second.expires_at is None and second.error is None
    )


@pytest.mark.promise("pipeline-7")
def test_a_batch_waits_for_its_interval_unless_a_full_one_is_there() -> None:
    pace = Pace({"interval_ms": "60000", "idle_wait_ms": "20", "poll_ms": "1"})
    nothing, some, full = Offer(False, False), Offer(True, False), Offer(True, True)
    assert not pace.wait(lambda: nothing)
    assert pace.wait(lambda: some), "the first one is due"
    assert not pace.wait(lambda: some)
    assert pace.wait(lambda: full)
    resting = Pace({"interval_ms": "0", "rest_ms": "60000", "idle_wait_ms": "20", "poll_ms": "1"})
    unwanted, full_unwanted = Offer(True, False, can_wait=True), Offer(True, True, can_wait=True)
    assert resting.wait(lambda: some) and not resting.wait(lambda: unwanted)
    assert resting.wait(lambda: some) and resting.wait(lambda: full_unwanted)
    offers = iter([nothing, nothing, full])
    assert Pace({"idle_wait_ms": "10000", "poll_ms": "1"}).wait(lambda: next(offers)), "seen while it waits"


@pytest.mark.promise("pipeline-7")
def test_bodies_too_large_for_one_batch_are_a_full_batch(log: LogWriter) -> None:
    for _ in range(3):
        log.append([record(payload=b"x" * 1_000)])
    file = LogFile(log.path)
    assert offer(file, 0, ReadMaxRows(100), 5_000, Counted(), stamped=None) == Offer(True, False)
    assert offer(file, 0, ReadMaxRows(100), 2_000, Counted(), stamped=None) == Offer(True, True)
    assert offer(file, 0, ReadMaxRows(3), 5_000, Counted(), stamped=None) == Offer(True, True)
    assert offer(file, 3, ReadMaxRows(3), 5_000, Counted(), stamped=None) == Offer(False, True)


@pytest.mark.promise("pipeline-7")
def test_only_what_nobody_waits_for_can_wait(log: LogWriter) -> None:
    """Whatever cannot be understood is somebody's until it has been read."""
    file, counted, stamped = LogFile(log.path), Counted(), Stamped()

    def can_wait(position: int, limit: int = 100) -> bool:
        return offer(file, position, ReadMaxRows(limit), 1 << 20, counted, stamped=stamped).can_wait

    log.append([record()] * 4)
    assert can_wait(0) and can_wait(2) and not can_wait(0, 3), "a full batch begins"
    log.append([record(), record("ok", stamps=STAMPS), record()])
    assert not can_wait(0) and not can_wait(4)
    log.append([record("a", b"x", qos=2, origin=Origin(3, 77), properties=PROPERTIES)])
    assert not can_wait(5) and can_wait(7), "its stamps are behind"
    log.append([record()[:-3]], count=1)
    assert not can_wait(7)
    log.append([record()])
    assert can_wait(9)
