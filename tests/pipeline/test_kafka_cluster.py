"""Dispatch on Kafka by a Spark standalone cluster: the records go through executors that are other processes."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.pipeline.driver_process import START_S, DriverProcess
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.log_writer import record
from tests.support.kafka_server import KafkaServer
from tests.support.spark_cluster import FAST_START, SECRET, SparkMaster, SparkWorker
from tests.support.waiting import wait_until

from embermq.formats.log_record import Stamp
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.status import read_status

RECORDS = 500
SLOTS = 3


def command_lines() -> Iterator[str]:
    """Of every process that can be seen."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[SparkWorker]:
    with (
        SparkMaster(tmp_path / "master") as master,
        SparkWorker(tmp_path / "worker", master, SLOTS) as worker,
    ):
        yield worker


@pytest.mark.promise("pipeline-15", "pipeline-6", "pipeline-16")
def test_dispatch_by_a_standalone_cluster(
    kafka: KafkaServer,
    worker: SparkWorker,
    places: Places,
    drivers: list[DriverProcess],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", FAST_START)
    log = LogInKafka(kafka.bootstrap, kafka.prefix())
    topic = log.log("backend")
    stamp = Stamp(topic, 7, 1)
    log.append(record(f"r{i % 7}/x", b"%d" % i, stamps=(stamp,)) for i in range(RECORDS))
    secret_file = places.data_dir.parent / "spark.secret"
    secret_file.write_text(f"{SECRET}\n")
    settings = DriverSettings(
        queries=("dispatch",),
        master=worker.master.url,
        spark_secret_file=str(secret_file),
        kafka=log.kafka,
    )
    driver = DriverProcess(places, settings)
    drivers.append(driver)
    wait_until(
        lambda: log.count(topic) >= RECORDS, 2 * START_S, "all records are in the application log", poll_s=0.1
    )
    assert sorted(int(one.value() or b"") for one in log.read(topic)) == list(range(RECORDS))
    assert len(worker.executors()) == 1, "executors are started by the worker, not by the driver"
    assert not [one for one in command_lines() if SECRET in one]
    log.wait_for_progress("dispatch")
    wait_until(  # the driver says once a second how it is
        lambda: [query.state for query in read_status(places.data_dir).queries] == ["running"],
        START_S,
        "status says that it runs",
        poll_s=0.1,
    )
    (query,) = read_status(places.data_dir).queries
    assert (query.name, query.mode, query.restarts) == ("dispatch", "realtime", 0)
    driver.process.terminate()
    assert driver.process.wait(START_S) == 0
    wait_until(
        lambda: not worker.master.state()["activeapps"], START_S, "the application has left the cluster"
    )
