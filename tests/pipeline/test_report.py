"""`embermq pipeline report`: its figures are those of the messages, and a page shows them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from tests.contracts.servers_stores import ServersStores
from tests.contracts.test_queue_store import ENTRY, LETTER, ROW
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.log_writer import NOON_MS, LogWriter
from tests.pipeline.queries import log_rows
from tests.support.kafka_server import KafkaServer
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers

from embermq.cli.main import main
from embermq.formats.entry_rest import Rest, encode_rest
from embermq.formats.log_record import Stamp, encode_record, encode_stamps, slot_field
from embermq.model.message import Message
from embermq.model.queue_rows import Attempts, DeadLetter, QueueWrites
from embermq.pipeline.jobs import report as job
from embermq.pipeline.jobs.kafka_ranges import read_ranges
from embermq.pipeline.places import Places
from embermq.pipeline.sinks.lake import Lake
from embermq.pipeline.sources.log_file import BrokerFile
from embermq.pipeline.transforms.archive import lake_rows
from embermq.pipeline.transforms.kafka_records import records_from_kafka

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
TRICKY = "<script>alert(1)</script>"


def published(
    number: int,
    publisher: str,
    topic: str,
    size: int,
    *,
    qos: int = 1,
    log: str = "app",
    fields: tuple[tuple[int, bytes], ...] = (),
) -> bytes:
    """One each hour, for the application `app`."""
    message = Message(topic, b"x" * size, qos, False, publisher, 4, NOON_MS + number * HOUR_MS)
    return encode_record(message, encode_stamps((Stamp(log, 7, 1),)), None, fields)


@pytest.fixture
def data_dir(spark: SparkSession, log: LogWriter, places: Places) -> Path:
    """Offsets 0 to 5 are in the lake alone, 6 to 39 in the log, of which 39 is damaged; every tenth is of QoS 2 and in
    a queue. Three dead letters, and latencies of two windows."""
    for number in range(40):
        if number % 10:
            log.append([published(number, f"car-{number % 3}", "cars/1", 2**10)])
        else:
            log.append([published(number, TRICKY, "$queue/work", 3, qos=2)])
    with closing(BrokerFile(places.broker)) as file:
        lake = Lake(str(places.lake), places)
        lake.open(spark, file.log_identity())
        lake.write(lake_rows(log_rows(spark, places, 0, 20)))
        lake.close()
    log.trim_below(6)
    log.damage(39, b"\xff" * 40)
    log.connection.execute("INSERT INTO queue VALUES (5, 'dlq/work', x'', 0, 0)")
    for number, reason in enumerate(("rejected", "rejected", "expired")):
        letter = DeadLetter("work", "g", reason, f"1-{number}", Attempts(), NOON_MS + number)
        rest = encode_rest(Rest("", "", letter))
        log.connection.execute("INSERT INTO queue_entry VALUES (5, ?, 0, 10, 0, NULL, ?, 0)", (number, rest))
    with closing(sqlite3.connect(places.traffic, isolation_level=None)) as traffic:
        traffic.executescript(files("embermq.formats").joinpath("traffic.sql").read_text())
        for window_ms, kind, deliveries, p50, p99 in (
            (NOON_MS, 1, 90, 2_000, 9_000),
            (NOON_MS + 10_000, 1, 10, 5_000, 70_000),
            (NOON_MS - DAY_MS, 1, 1, 1, 1),
        ):
            traffic.execute(
                "INSERT INTO latency_window VALUES (?, 'cars', ?, 10000, ?, ?, ?, ?, ?)",
                (window_ms, kind, deliveries, p50, p99, p99, 2 * p99),
            )
    return places.data_dir


@pytest.fixture
def _with_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job in this process finds Spark that has started already."""

    @contextmanager
    def started(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(job, "batch_session", started)


@pytest.mark.promise("pipeline-1", "pipeline-12")
@pytest.mark.usefixtures("_with_spark")
def test_figures_tables_and_page(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each figure of `pipeline report` from records that are known, as JSON, Parquet and a page."""
    words = ["pipeline", "report", "--data-dir", str(data_dir), "--json"]
    folder = tmp_path / "report"
    assert main([*words, "--into", str(folder)]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])["report"]
    told = (report["messages"], report["payload_bytes"], report["unreadable"], report["publishers_count"])
    assert told == (39, 35 * 2**10 + 4 * 3, 1, 4)
    assert report["ranges"] == [{"partition": 0, "start": 0, "end": 40}]
    assert len(report["hours"]) == 39 and report["hours"][0]["hour"] == "2025-06-15 15:00"
    assert next(one for one in report["hours"] if one["queue"] == "work")["qos2"] == 1
    assert {one["client"]: one["messages"] for one in report["publishers"]} == {
        "car-0": 11,
        "car-1": 12,
        "car-2": 12,
        TRICKY: 4,
    }
    assert report["receivers"] == [
        {"client": "app", "messages": 39, "payload_bytes": report["payload_bytes"]}
    ]
    assert report["sizes"] == {"4": 4, "1024": 35}
    (cars,) = [one for one in report["roots"] if one["root"] == "cars"]
    assert (cars["p50"], cars["p99"], cars["largest"], cars["messages"]) == (1_024, 1_024, 1_024, 35)
    assert report["latencies"] == [
        {
            "date": "2025-06-15",
            "clients": "APPLICATION",
            "samples": 100,
            "p50_us": 2_000,
            "worst_p99_us": 70_000,
            "max_us": 140_000,
        }
    ]
    assert [(one["reason"], one["letters"]) for one in report["dead_letters"]] == [
        ("expired", 1),
        ("rejected", 2),
    ]

    assert pl.read_parquet(folder / "traffic.parquet")["messages"].sum() == 39
    assert pl.read_parquet(folder / "publishers.parquet")["payload_bytes"].sum() == report["payload_bytes"]
    assert pl.read_parquet(folder / "dead_letters.parquet")["letters"].sum() == 3
    assert pl.read_parquet(folder / "latencies.parquet")["samples"].to_list() == [100]
    page = (folder / "report.html").read_text()
    assert page.count("<svg") >= 5 and "<script" not in page and "&lt;script&gt;" in page

    assert main([*words, "--from", "2025-06-16", "--dry-run"]) == 0
    later = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert later["folder"] == "" and later["report"]["messages"] == 39 - 9
    assert later["report"]["latencies"] == [] and not (data_dir / "reports").exists()
    assert main([*words, "--into", str(folder)]) == 1
    assert "is there already" in capsys.readouterr().err


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-1", "pipeline-12")
@pytest.mark.usefixtures("_with_spark")
def test_a_log_in_kafka_has_the_same_report(
    spark: SparkSession,
    kafka: KafkaServer,
    redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of both partitions the first offsets are in the lake alone, the next ones in both."""
    servers, places = on_servers(kafka, redis_server), Places(tmp_path / "data")
    in_kafka = LogInKafka(kafka.bootstrap, str(servers["kafka.prefix"]))
    app = f"{in_kafka.kafka.application_prefix}app"
    in_kafka.append(
        published(number, f"car-{number % 3}", f"cars/{number}", 2**10, log=app) for number in range(40)
    )
    in_kafka.append_raw(b"cars/x", b"x", [("v", b"9.0")])
    copies = range(39, 44)
    in_kafka.append(
        published(number, "van", f"cars/{number}", 1, log=app, fields=(slot_field(1, number),))
        for number in copies
    )
    in_kafka.flush()
    ends = in_kafka.ends()
    assert min(ends.values()) >= 8
    begin = dict.fromkeys(ends, 0)
    rows = read_ranges(spark, in_kafka.kafka, in_kafka.kafka.log_topic, begin, dict.fromkeys(ends, 6))
    assert rows is not None
    lake = Lake(str(places.lake), places)
    lake.open(spark, in_kafka.positions.archive_id(), list(ends))
    records = lake_rows(records_from_kafka(rows, in_kafka.kafka.application_prefix)).persist()
    lake.write(records)
    lake.close()
    in_kafka.trim(dict.fromkeys(ends, 4))
    with closing(ServersStores(redis_server.url, tmp_path / "stores")) as stores:
        letter = replace(ENTRY, queue=5, sequence=1, record=0, dead_letter=LETTER)
        row = replace(ROW, generation=5, name="dlq/work")
        stores.write(
            records=[published(0, "car", "$queue/work", 1)],
            queues=QueueWrites(queues={5: row}, entries={(5, 1): letter}),
        )

    words = ["pipeline", "report", "--data-dir", str(places.data_dir), "--json"]
    for name, value in servers.items():
        words += ["--set", f"{name}={value}"]
    folder = tmp_path / "report"
    assert main([*words, "--from", "2025-06-15T16:00", "--into", str(folder)]) == 0, capsys.readouterr().err
    report = json.loads(capsys.readouterr().out.splitlines()[-1])["report"]
    assert report["ranges"] == [{"partition": number, "start": 0, "end": end} for number, end in ends.items()]
    assert (report["messages"], report["payload_bytes"], report["unreadable"]) == (39, 39 * 2**10, 1)
    assert {one["client"]: one["messages"] for one in report["publishers"]} == {
        "car-0": 13,
        "car-1": 13,
        "car-2": 13,
    }
    assert [(one["client"], one["messages"]) for one in report["receivers"]] == [("app", 39 + len(copies))]
    assert len(report["hours"]) == 39
    assert [(one["queue"], one["reason"]) for one in report["dead_letters"]] == [
        (LETTER.queue, LETTER.reason)
    ]
    assert pl.read_parquet(folder / "traffic.parquet")["messages"].sum() == 39
    assert f"positions 0:0 up to 0:{ends[0]}, 1:0 up to" in (folder / "report.html").read_text()

    assert main([*words, "--from", "1:2", "--to", "1:7", "--dry-run"]) == 0, capsys.readouterr().err
    report = json.loads(capsys.readouterr().out.splitlines()[-1])["report"]
    assert report["ranges"] == [
        {"partition": 0, "start": ends[0], "end": ends[0]},
        {"partition": 1, "start": 2, "end": 7},
    ]
    assert report["messages"] + report["unreadable"] == 5
