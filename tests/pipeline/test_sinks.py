"""The sinks: each position has one effect, whatever is repeated, cut differently or interrupted."""

import sqlite3
import struct

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.pipeline.queries import log_rows, rows_of

from embermq.formats.log_record import Stamp
from embermq.pipeline.errors import OtherVersionError
from embermq.pipeline.places import Places
from embermq.pipeline.sinks.application_logs import ApplicationLogSink
from embermq.pipeline.sinks.message_file import MessageFile
from embermq.pipeline.sinks.traffic_windows import TrafficWindows
from embermq.pipeline.transforms.archive import stored_messages
from embermq.pipeline.transforms.dispatch import application_entries

REPLAYS = [(0, 10), (0, 10), (5, 17), (3, 30), (29, 40)]
"""Offset ranges as a query might repeat them after losing its checkpoint."""
STAMP = (Stamp("billing", 7, 1),)


def fill(log: LogWriter) -> None:
    """40 records of three roots, one of them poison."""
    for tick in range(4):
        log.append([record(f"r{i % 3}/x", b"%d" % (tick * 10 + i), stamps=STAMP) for i in range(10)])
    log.damage(20, record() * 2)


@pytest.mark.promise("pipeline-2", "pipeline-4")
def test_dispatch_repeated_with_other_boundaries(spark: SparkSession, log: LogWriter, places: Places) -> None:
    log.append([record(stamps=STAMP) for _ in range(15)])
    log.append([b"\0\0\0\1\x10", record(stamps=(*STAMP, Stamp("audit", 8, 2)))])
    log.append([record(stamps=STAMP) for _ in range(23)])
    sink = ApplicationLogSink(places.applications)
    for start, end in REPLAYS:
        sink.write(application_entries(log_rows(spark, places, start, end, "route")))
    assert sink.file.position() == 40
    assert sink.file.counts() == {"records": 40, "entries": 40, "rejected": 1}
    found = rows_of(places.applications, 'SELECT generation, "offset" FROM application_log ORDER BY 1, 2')
    assert found == [(7, offset) for offset in range(40) if offset != 15] + [(8, 16)]
    assert rows_of(places.applications, "SELECT * FROM application_name") == [(7, "billing"), (8, "audit")]
    rejected = rows_of(places.applications, 'SELECT "offset", reason, body FROM rejected')
    assert len(rejected) == 1 and rejected[0][0] == 15 and rejected[0][2] == b"\0\0\0\1\x10"
    assert "no record" in str(rejected[0][1])


@pytest.mark.promise("pipeline-2")
def test_dispatch_writes_all_of_a_batch_or_nothing(
    spark: SparkSession, log: LogWriter, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append([record(stamps=STAMP)] * 5)
    sink = ApplicationLogSink(places.applications)
    rows = application_entries(log_rows(spark, places, 0, 5, "route"))

    def fail(**_: int) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(sink.file, "count", fail)
    with pytest.raises(sqlite3.OperationalError):
        sink.write(rows)
    assert sink.file.position() is None
    assert rows_of(places.applications, "SELECT COUNT(*) FROM application_log") == [(0,)]
    monkeypatch.undo()
    assert sink.write(rows) == 5
    assert rows_of(places.applications, "SELECT COUNT(*) FROM application_log") == [(5,)]


@pytest.mark.promise("pipeline-2", "pipeline-11", "pipeline-3")
def test_the_message_store_repeated_with_other_boundaries(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    fill(log)
    sink = MessageFile(places.messages)
    for start, end in REPLAYS:
        sink.write(stored_messages(log_rows(spark, places, start, end)))
    assert sink.file.counts() == {"records": 40, "entries": 32, "rejected": 8, "bytes": 76}
    found = rows_of(
        places.messages, 'SELECT "offset", payload FROM message WHERE topic = \'r1/x\' ORDER BY "offset"'
    )
    expected = [
        (offset, b"%d" % offset) for offset in range(40) if offset % 10 % 3 == 1 and offset // 10 != 2
    ]
    assert found == expected
    plan = rows_of(
        places.messages,
        'EXPLAIN QUERY PLAN SELECT * FROM message WHERE topic = \'r1/x\' AND "offset" > 5 ORDER BY "offset"',
    )
    assert "message_by_topic" in str(plan) and "SCAN" not in str(plan)


@pytest.mark.promise("pipeline-11", "pipeline-7")
def test_the_message_store_is_pruned_by_age_a_bounded_number_at_a_time(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    log.append([record(accepted_ms=NOON_MS + i) for i in range(10)])
    sink = MessageFile(places.messages)
    sink.write(stored_messages(log_rows(spark, places, 0, 10)))
    assert [sink.prune(NOON_MS + 5, 3) for _ in range(3)] == [3, 2, 0]
    assert rows_of(places.messages, 'SELECT MIN("offset"), COUNT(*) FROM message') == [(5, 5)]


def event_rows(spark: SparkSession, log: LogWriter, places: Places, start: int, end: int):  # type: ignore[no-untyped-def]
    """Rows as the traffic source gives them, without receipts."""
    rows = log_rows(spark, places, start, end)
    return rows.selectExpr("*", "CAST(NULL AS BIGINT) AS latency_us", "CAST(NULL AS INT) AS client_type")


@pytest.mark.promise("pipeline-9", "pipeline-2")
def test_late_messages_are_counted_in_their_window_and_nothing_counts_twice(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    second = 1_000
    log.append([record(accepted_ms=NOON_MS, qos=1), record(accepted_ms=NOON_MS + 9_999, qos=2)])
    log.append([record("other/x", accepted_ms=NOON_MS + 200 * second), b"\0\0\0\1\x10"])
    log.append([record(accepted_ms=NOON_MS + 1), record(accepted_ms=NOON_MS + 190 * second)])
    sink = TrafficWindows(places.traffic, window_s=10, watermark_s=60)
    for start, end in [(0, 2), (0, 4), (1, 4), (2, 6), (0, 6)]:
        sink.write(event_rows(spark, log, places, start, end))
    size = len(b'{"speed": 80}')
    windows = rows_of(
        places.traffic,
        "SELECT window_ms, root, messages, payload_bytes, qos1, qos2, late FROM traffic_window ORDER BY 1, 2",
    )
    assert windows == [
        (NOON_MS, "cars", 2, 2 * size, 1, 1, 1),
        (NOON_MS + 190 * second, "cars", 1, size, 1, 0, 0),
        (NOON_MS + 200 * second, "other", 1, size, 1, 0, 0),
    ]
    assert sink.file.counts() == {"records": 6, "entries": 4, "late": 1, "rejected": 1, "bytes": 4 * size}
    watermark = "SELECT value FROM traffic_state WHERE name = 'watermark_ms'"
    assert rows_of(places.traffic, watermark) == [(NOON_MS + 140 * second,)]
    assert sink.prune(NOON_MS + 195 * second, 1) == 1
    assert sink.prune(NOON_MS + 195 * second, 10) == 1


@pytest.mark.promise("pipeline-5")
def test_what_the_log_let_go_unread_is_told_apart_from_what_cannot_be_understood(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    for _ in range(3):
        log.append([record(accepted_ms=NOON_MS)] * 5)
    log.append([b"\0\0\0\1\x10"])
    log.trim_below(10)
    messages = MessageFile(places.messages)
    traffic = TrafficWindows(places.traffic, window_s=10, watermark_s=60)
    for start, end in [(3, 12), (3, 16), (0, 16)]:
        messages.write(stored_messages(log_rows(spark, places, start, end)))
        traffic.write(event_rows(spark, log, places, start, end))
    expected = {"records": 13, "entries": 5, "missing": 7, "rejected": 1}
    for sink in (messages, traffic):
        found = sink.file.counts()
        assert {what: found[what] for what in expected} == expected, sink


@pytest.mark.promise("pipeline-2", "pipeline-9")
def test_each_durable_queue_has_windows_of_its_own(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    second = 1_000
    log.append(
        [record("$queue/tasks/images", b"12345", accepted_ms=NOON_MS + i, qos=1 + i % 2) for i in range(3)]
    )
    log.append([record("$queue/tasks", b"1", qos=0), record("queue/tasks"), record("$queue", b"")])
    log.append([record("$queue/mail", accepted_ms=NOON_MS + 200 * second), record("$queue/mail")])
    sink = TrafficWindows(places.traffic, window_s=10, watermark_s=60)
    for start, end in [(0, 2), (0, 7), (5, 8)]:
        sink.write(event_rows(spark, log, places, start, end))
    size = len(b'{"speed": 80}')
    windows = (
        "SELECT window_ms, queue, messages, payload_bytes, qos1, qos2, late FROM queue_window ORDER BY 1, 2"
    )
    assert rows_of(places.traffic, windows) == [
        (NOON_MS, "mail", 0, 0, 0, 0, 1),
        (NOON_MS, "tasks", 1, 1, 0, 0, 0),
        (NOON_MS, "tasks/images", 3, 15, 2, 1, 0),
        (NOON_MS + 200 * second, "mail", 1, size, 1, 0, 0),
    ]
    roots = "SELECT root, SUM(messages), SUM(late) FROM traffic_window GROUP BY 1 ORDER BY 1"
    assert rows_of(places.traffic, roots) == [("$queue", 6, 1), ("queue", 1, 0)]
    sink.prune(NOON_MS + 195 * second, 10)
    assert rows_of(places.traffic, windows) == [(NOON_MS + 200 * second, "mail", 1, size, 1, 0, 0)]


@pytest.mark.promise("application-2", "pipeline-7")
def test_application_logs_are_trimmed_below_floors_and_dropped_with_their_generation(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    stamps = (Stamp("a", 1, 1), Stamp("b", 2, 1))
    log.append([record(stamps=stamps)] * 10)
    log.set_floor(1, 6)
    log.set_floor(2, 0)
    sink = ApplicationLogSink(places.applications)
    sink.write(application_entries(log_rows(spark, places, 0, 8, "route")))
    assert [sink.trim(places, 4) for _ in range(3)] == [4, 2, 0]

    def entries() -> list[tuple[object, ...]]:
        return rows_of(
            places.applications, 'SELECT generation, MIN("offset"), COUNT(*) FROM application_log GROUP BY 1'
        )

    assert entries() == [(1, 6, 2), (2, 0, 8)]
    log.forget(2)
    assert sink.trim(places, 100) == 0, "offsets 8 and 9 may still carry its stamp"
    assert sink.trim(places, 100) == 0
    sink.write(application_entries(log_rows(spark, places, 8, 10, "route")))
    assert [sink.trim(places, 7) for _ in range(3)] == [7, 3, 0]
    assert entries() == [(1, 6, 4)]
    assert rows_of(places.applications, "SELECT log FROM application_name") == [("a",)]


def receipts(accepted_ms: int, latencies_us: range) -> bytes:
    return b"".join(struct.pack(">qIBB", accepted_ms, us, 1, 4) + b"cars" for us in latencies_us)


@pytest.mark.promise("pipeline-8")
@pytest.mark.parametrize("version", [0, 2])
def test_a_file_of_another_version_is_refused_and_left_alone(places: Places, version: int) -> None:
    ApplicationLogSink(places.applications).file.close()
    connection = sqlite3.connect(places.applications)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = places.applications.read_bytes()
    with pytest.raises(OtherVersionError, match=rf"applications\.db has schema version {version}"):
        ApplicationLogSink(places.applications)
    assert places.applications.read_bytes() == before
