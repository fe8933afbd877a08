"""Archive, lake and traffic on a real Kafka: each record once, by partition and offset, over a killed driver."""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.contracts.message_stores import SETTINGS, MessageStores
from tests.pipeline.driver_process import START_S, DriverProcess
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.lake import rows_in
from tests.pipeline.log_writer import record
from tests.pipeline.queries import rows_of
from tests.pipeline.test_processes import GONE_S
from tests.support.kafka_server import KafkaServer
from tests.support.waiting import wait_until

from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings, QueryName
from embermq.pipeline.status import read_status

BATCH = 300
RECORDS = 1_200
LARGE = 20_000
LARGE_RECORDS = 28_000
LARGE_HEAP_MB = 512
"""Less than the bytes of one batch, which has at most `max_records_per_batch` records."""
STORED = 'SELECT "partition", "offset", topic, payload FROM {table} ORDER BY "partition", "offset"'

Row = tuple[object, ...]


def fresh_records(start: int, end: int) -> list[bytes]:
    """Accepted just now, or the archive would prune them as too old; of topics in both partitions."""
    now_ms = time.time_ns() // 1_000_000
    return [record(f"r{i % 7}/x", b"%d" % i, accepted_ms=now_ms) for i in range(start, end)]


def settings_for(log: LogInKafka, *queries: QueryName, message_store: str = "") -> DriverSettings:
    return DriverSettings(
        queries=queries,
        kafka=log.kafka,
        max_records_per_batch=BATCH,
        bulk_trigger_ms=0,
        message_store=message_store,
        sql=SETTINGS,
    )


def through_a_kill(
    log: LogInKafka, places: Places, drivers: list[DriverProcess], settings: DriverSettings
) -> DriverProcess:
    """RECORDS and a broken one, half of them behind the kill of a driver that was in the middle of them."""
    log.append(fresh_records(0, RECORDS // 2))
    log.append_raw(b"r0/x", b"broken", [("v", b"9.0")])
    last = settings.queries[-1]
    first = DriverProcess(places, settings)
    drivers.append(first)
    wait_until(
        lambda: sum(log.positions.progress().get(last, {}).values()) > 0, START_S, f"{last} runs", poll_s=0.05
    )
    os.kill(first.process.pid, signal.SIGKILL)
    wait_until(first.is_gone, GONE_S, "the JVM and the workers go with the driver", poll_s=0.05)
    log.append(fresh_records(RECORDS // 2, RECORDS))
    second = DriverProcess(places, settings)
    drivers.append(second)
    for query in settings.queries:
        log.wait_for_progress(query)
    return second


def check_stored(log: LogInKafka, rows: list[Row]) -> None:
    """Each good record once, at its place in Kafka, so that a topic's order is that of the log."""
    in_kafka = [
        (one.partition(), one.offset(), bytes(one.key() or b"").decode(), one.value())
        for one in log.read(log.kafka.log_topic)
        if one.value() != b"broken"
    ]
    assert len(in_kafka) == RECORDS and {row[0] for row in in_kafka} == {0, 1}
    assert [(row[0], row[1], row[2], bytes(row[3])) for row in rows] == in_kafka  # type: ignore[call-overload]


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2", "pipeline-3", "pipeline-10", "pipeline-11", "pipeline-13")
def test_every_sink_has_each_record_once_though_the_driver_was_killed(
    kafka: KafkaServer, tmp_path: Path, drivers: list[DriverProcess], request: pytest.FixtureRequest
) -> None:
    """The archive on a server, lake and windows in files."""
    folder = tmp_path / "data"
    folder.mkdir()
    places = Places(folder)
    stores = MessageStores("postgres", folder, request.getfixturevalue("postgres"))
    try:
        log = LogInKafka(kafka.bootstrap, kafka.prefix())
        settings = settings_for(log, "archive", "traffic", "lake", message_store=stores.url)
        driver = through_a_kill(log, places, drivers, settings)
        check_status(places)
        driver.process.terminate()
        assert driver.process.wait(GONE_S) == 0
        check_stored(log, stores.rows(STORED.format(table="embermq_messages")))
        ids = stores.rows("SELECT DISTINCT log_id FROM embermq_messages")
        assert len(ids) == 1 and ids[0][0] != 0, "the rows say of which log they are"
    finally:
        stores.close()
    check_stored(log, sorted(rows_in(places, "partition", "offset", "topic", "payload")))
    ((messages, late),) = rows_of(places.traffic, "SELECT SUM(messages), SUM(late) FROM traffic_window")
    assert int(str(messages)) + int(str(late)) == RECORDS
    rejected = rows_of(places.traffic, "SELECT SUM(total) FROM counted WHERE what = 'rejected'")
    assert rejected == [(1,)]


def check_status(places: Places) -> None:
    """All is done, and the status knows it."""
    wait_until(
        lambda: all(query.lag_messages == 0 for query in read_status(places.data_dir).queries),
        START_S,
        "status knows that all is done",
        poll_s=0.1,
    )
    status = read_status(places.data_dir)
    assert status.log_end == status.waiting == RECORDS + 1, "without dispatch application logs wait"
    assert {query.mode for query in status.queries} == {"microbatch"}
    assert all(sum(query.positions.values()) == RECORDS + 1 for query in status.queries)


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-7")
def test_a_batch_larger_than_the_heap_is_archived(
    kafka: KafkaServer, tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    """The archive shares its JVM with dispatch: nothing of a batch is collected there."""
    folder = tmp_path / "data"
    folder.mkdir()
    places = Places(folder)
    log = LogInKafka(kafka.bootstrap, kafka.prefix())
    now_ms = time.time_ns() // 1_000_000
    log.append(record(f"r{i % 7}/x", bytes(LARGE), accepted_ms=now_ms) for i in range(LARGE_RECORDS))
    settings = DriverSettings(queries=("archive",), kafka=log.kafka, bulk_trigger_ms=0, heap_mb=LARGE_HEAP_MB)
    driver = DriverProcess(places, settings)
    drivers.append(driver)
    log.wait_for_progress("archive")
    assert [query.restarts for query in read_status(places.data_dir).queries] == [0]
    driver.process.terminate()
    assert driver.process.wait(GONE_S) == 0
    assert rows_of(places.messages, "SELECT COUNT(*), MIN(LENGTH(payload)) FROM kafka_message") == [
        (LARGE_RECORDS, LARGE)
    ]
