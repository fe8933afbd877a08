"""A batch of the embedded log in its file is for every sink what the rows of a DataFrame are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.pipeline.queries import log_rows
from tests.pipeline.test_sinks import receipts

from embermq.formats.log_record import Origin, Stamp
from embermq.mqtt.wire.properties import Properties
from embermq.pipeline.places import Places
from embermq.pipeline.schema import record_schema
from embermq.pipeline.sinks.delta_table import OF_MESSAGES
from embermq.pipeline.sinks.lake_file import make_lake_file, statistics_of
from embermq.pipeline.sources.batch_file import write_batch
from embermq.pipeline.sources.receipts import ReceiptFile
from embermq.pipeline.transforms.archive import lake_rows, stored_messages
from embermq.pipeline.transforms.arrow_rows import stored_table
from embermq.pipeline.transforms.traffic import traffic_events, traffic_windows
from embermq.pipeline.transforms.traffic_table import traffic_rows, traffic_table

LATE_MS = NOON_MS + 5
PAYLOADS = [
    b'{"a": [1, null]}',
    b" 17 ",
    b"{broken",
    b"\xff\xfe",
    b"",
    '"ü"'.encode(),
    b"3 boxes",
    b"[1],[2]] x",
    b'{"t": 1e400}',
]
PROPERTIES = Properties(
    payload_format_indicator=1,
    message_expiry_interval=60,
    content_type="text/plain",
    response_topic="r/1",
    correlation_data=b"\x00\xff",
    user_properties=(("a", "1"), ("a", "ü")),
)


def fill(log: LogWriter) -> None:
    """Everything that a record can have, records that cannot be understood, and some that are gone."""
    log.append([record()] * 3)
    log.append([record("cars/1", payload, accepted_ms=NOON_MS + i) for i, payload in enumerate(PAYLOADS)])
    log.append([record(properties=PROPERTIES, expires_ms=NOON_MS + 60_000, qos=2, origin=Origin(5, 9))])
    log.append([record("$queue/tasks/images", b"1"), record("/x"), record("x" * 300 + "/y", qos=2)])
    log.append([record(stamps=(Stamp("a", 1, 1, True, (1, 70_000)),), unknown_fields=((77, b"?"),))])
    log.append([b"\0\0\0\1\x10", record(accepted_ms=NOON_MS + 20_000)])
    log.trim_below(3)


def listed(table: pa.Table, *keys: str) -> list[dict[str, Any]]:
    """Rows in one order, columns in any."""
    return sorted(table.to_pylist(), key=lambda row: [str(row[key]) for key in keys])


@pytest.fixture
def file(spark: SparkSession, log: LogWriter, places: Places, tmp_path: Path) -> Path:
    fill(log)
    path = tmp_path / "batch.parquet"
    write_batch(spark, places.log, 1, log.end, path)
    return path


@pytest.mark.promise("pipeline-5", "pipeline-9", "pipeline-10", "pipeline-11")
def test_the_file_gives_what_the_rows_give(
    spark: SparkSession, log: LogWriter, places: Places, file: Path
) -> None:
    rows = log_rows(spark, places, 1, log.end)
    in_file = spark.read.schema(record_schema()).parquet(f"file://{file}")
    assert in_file.orderBy("offset").collect() == rows.orderBy("offset").collect()
    stored = stored_messages(rows).toArrow()
    assert listed(stored_table(file).select(stored.column_names), "offset") == listed(stored, "offset")

    keys = ("window_ms", "root", "queue", "client_type", "bucket", "partition")
    for watermark_ms in (0, LATE_MS):
        windows = traffic_windows(traffic_events(rows), 10, watermark_ms).toArrow()
        found = traffic_table(traffic_rows(file), 10, watermark_ms)
        assert listed(found.select(windows.column_names), *keys) == listed(windows, *keys)
    log.add_receipts(receipts(NOON_MS, range(1_000, 101_000, 1_000)))
    log.add_receipts(b"torn")
    log.add_receipts(receipts(NOON_MS, range(1, 1 << 20, 99_999)))
    samples = ReceiptFile(places.broker).table(0, 10)
    windows = traffic_windows(spark.createDataFrame(samples), 10, 0).toArrow()
    found = traffic_table(samples, 10, 0)
    assert listed(found.select(windows.column_names), *keys) == listed(windows, *keys)


@pytest.mark.promise("pipeline-10")
def test_a_file_of_the_lake_has_its_rows_and_says_what_is_in_it(
    spark: SparkSession, log: LogWriter, places: Places, file: Path
) -> None:
    def expected(since: int) -> DataFrame:
        return lake_rows(log_rows(spark, places, 1, log.end)).where(f"offset >= {since} AND error IS NULL")

    made = make_lake_file(spark, file, 4_711, 5)
    assert made is not None
    found = pq.read_table(made.path)
    names = [name for name in found.column_names if name != "log_id"]
    assert listed(found.select(names), "offset") == listed(expected(5).select(names).toArrow(), "offset")
    assert set(found["log_id"].to_pylist()) == {4_711}
    covered = made.covered
    assert (covered.first, covered.end, covered.good) == (5, log.end, len(found))
    assert (covered.rejected, covered.missing) == (1, 0)
    told = json.loads(made.statistics)
    assert told["numRecords"] == len(found) and told["minValues"]["offset"] == 5
    assert told["maxValues"]["accepted_at"] == "2025-06-15T15:06:60.000Z".replace("06:60", "07:00")
    assert told["minValues"]["date"] == told["maxValues"]["date"] == "2025-06-15"
    assert told["minValues"]["topic"] == "$queue/tasks/images"
    assert "topic" not in told["maxValues"], "of 302 characters: a prefix of it is less than it is"
    missing = make_lake_file(spark, file, 4_711, 0)
    assert missing is not None and (missing.covered.first, missing.covered.missing) == (1, 2)
    assert make_lake_file(spark, file, 4_711, log.end) is None


def test_statistics_of_nothing_but_nulls() -> None:
    table = pa.table({name: pa.nulls(2, pa.string()) for name in OF_MESSAGES.measured})
    told = json.loads(statistics_of(table, OF_MESSAGES.measured))
    assert told["minValues"] == told["maxValues"] == {} and set(told["nullCount"].values()) == {2}
