"""Every query by executors on two workers of a standalone cluster: Kafka, an SQL server and object storage, no file of
the broker's data directory."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import deltalake
import pytest
from tests.contracts.message_stores import SETTINGS, MessageStores
from tests.pipeline.driver_process import START_S, DriverProcess
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.log_writer import record
from tests.pipeline.queries import rows_of
from tests.support.kafka_server import KafkaServer
from tests.support.seaweed import BUCKET, KEY, SECRET, SeaweedServer
from tests.support.spark_cluster import FAST_START, SparkMaster, SparkWorker
from tests.support.spark_cluster import SECRET as CLUSTER_SECRET
from tests.support.waiting import wait_until

from embermq.app.config import load_configuration
from embermq.app.pipeline_side import look_at_log
from embermq.formats.log_record import Stamp
from embermq.pipeline.places import Places
from embermq.pipeline.rejected import rejected_in_kafka
from embermq.pipeline.settings import QUERIES, DriverSettings
from embermq.pipeline.status import PipelineStatus, read_status

RECORDS = 600
SLOTS = 4
EXECUTOR_MB = 640
KEYS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
POSITIONS = 'SELECT "partition", "offset" FROM embermq_messages ORDER BY "partition", "offset"'


class Cluster:
    """One master, two workers, and the storage that the lake is in."""

    def __init__(self, master: SparkMaster, workers: tuple[SparkWorker, ...], seaweed: SeaweedServer) -> None:
        self.master = master
        self.workers = workers
        self.seaweed = seaweed

    def executors(self) -> list[int]:
        """How many each worker has started."""
        return [len(worker.executors()) for worker in self.workers]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "s3").mkdir()
    with (
        SeaweedServer(folder / "s3") as seaweed,
        SparkMaster(folder / "master") as master,
        SparkWorker(folder / "one", master, SLOTS) as one,
        SparkWorker(folder / "two", master, SLOTS) as two,
    ):
        yield Cluster(master, (one, two), seaweed)


def command_lines() -> Iterator[str]:
    """Of every process that can be seen."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")


def settings_on(cluster: Cluster, log: LogInKafka, folder: Path, store: str) -> DriverSettings:
    secret_file = folder / "spark.secret"
    secret_file.write_text(f"{CLUSTER_SECRET}\n")
    (folder / "events").mkdir()
    return DriverSettings(
        master=cluster.master.url,
        spark_secret_file=str(secret_file),
        spark_options=(
            f"spark.executor.memory={EXECUTOR_MB}m",
            "spark.eventLog.enabled=true",
            f"spark.eventLog.dir=file://{folder / 'events'}",
        ),
        kafka=log.kafka,
        message_store=store,
        sql=SETTINGS,
        lake_dir=f"s3a://{BUCKET}/{folder.name}",
        lake_s3_endpoint=cluster.seaweed.endpoint,
        bulk_trigger_ms=1_000,
    )


def write_records(log: LogInKafka, topic: str) -> None:
    """Accepted just now, or the archive would prune them as too old."""
    now_ms = time.time_ns() // 1_000_000
    stamp = Stamp(topic, 7, 1)
    log.append(record(f"r{i % 7}/x", b"%d" % i, accepted_ms=now_ms, stamps=(stamp,)) for i in range(RECORDS))
    log.append_raw(b"r0/x", b"broken", [("v", b"9.0")])


def positions_in_lake(cluster: Cluster, settings: DriverSettings) -> list[tuple[object, ...]]:
    place = settings.lake_dir.replace("s3a:", "s3:")
    table = deltalake.DeltaTable(place, storage_options=cluster.seaweed.options()).to_pyarrow_table(
        columns=["partition", "offset"]
    )
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def check_counts(
    cluster: Cluster, settings: DriverSettings, log: LogInKafka, topic: str, stores: MessageStores
) -> None:
    """Each good record once in the application log, the archive and the lake."""
    good = [
        (one.partition(), one.offset()) for one in log.read(log.kafka.log_topic) if one.value() != b"broken"
    ]
    assert len(good) == RECORDS and {row[0] for row in good} == {0, 1}
    assert sorted(int(one.value() or b"") for one in log.read(topic)) == list(range(RECORDS))
    assert stores.rows(POSITIONS) == good
    assert positions_in_lake(cluster, settings) == good
    assert log.count(log.kafka.rejected_topic) == 1


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-15", "pipeline-2", "pipeline-6", "pipeline-16")
def test_all_queries_on_two_workers(
    cluster: Cluster,
    kafka: KafkaServer,
    tmp_path: Path,
    drivers: list[DriverProcess],
    request: pytest.FixtureRequest,
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    places = Places(folder)
    stores = MessageStores("postgres", folder, request.getfixturevalue("postgres"))
    try:
        log = LogInKafka(kafka.bootstrap, kafka.prefix())
        topic = log.log("backend")
        write_records(log, topic)
        settings = settings_on(cluster, log, tmp_path, stores.url)
        driver = DriverProcess(places, settings, KEYS | {"JAVA_TOOL_OPTIONS": FAST_START})
        drivers.append(driver)
        wait_until(lambda: log.count(topic) >= RECORDS, 2 * START_S, "records are carried", poll_s=0.5)
        for query in settings.queries:
            log.wait_for_progress(query)
        assert cluster.executors() == [1, 1], "workers start executors, one each"
        application = str(cluster.master.state()["activeapps"])
        assert f"'memoryperexecutor': {EXECUTOR_MB}," in application, "Spark's own options pass through"
        assert not [one for one in command_lines() if CLUSTER_SECRET in one or SECRET in one]
        check_counts(cluster, settings, log, topic, stores)
        ((messages, late),) = rows_of(places.traffic, "SELECT SUM(messages), SUM(late) FROM traffic_window")
        assert int(str(messages)) + int(str(late)) == RECORDS
        wait_until(
            lambda: {query.state for query in read_status(folder).queries} == {"running"},
            START_S,
            "status says that all run",
            poll_s=0.1,
        )
        dispatch = read_status(folder).queries[0]
        assert (dispatch.name, dispatch.mode, dispatch.restarts) == ("dispatch", "realtime", 0)
        driver.process.terminate()
        assert driver.process.wait(START_S) == 0
        wait_until(
            lambda: not cluster.master.state()["activeapps"], START_S, "the application has left the cluster"
        )
        check_compaction(cluster, settings, tmp_path, folder)
    finally:
        stores.close()
    assert any(path.stat().st_size for path in (tmp_path / "events").rglob("*") if path.is_file())


def applications_done(cluster: Cluster) -> int:
    found = cluster.master.state()["completedapps"]
    assert isinstance(found, list)
    return len(found)


def check_compaction(cluster: Cluster, settings: DriverSettings, tmp_path: Path, data_dir: Path) -> None:
    """Where the lake is in object storage, putting it in order is done by the cluster too."""
    config = tmp_path / "embermq.toml"
    config.write_text(toml_of(settings))
    records, done = positions_in_lake(cluster, settings), applications_done(cluster)
    program = [str(Path(sys.executable).with_name("embermq")), "pipeline", "compact", "--json"]
    told = subprocess.run(
        [*program, "--config", str(config), "--data-dir", str(data_dir)],
        env=os.environ | KEYS | {"JAVA_TOOL_OPTIONS": FAST_START},
        capture_output=True,
        text=True,
        timeout=2 * START_S,
    )
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout.splitlines()[-1])["report"]
    assert report["files_after"] <= report["files_before"]
    assert positions_in_lake(cluster, settings) == records
    wait_until(lambda: applications_done(cluster) == done + 1, START_S, "the cluster has done it")


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-15", "pipeline-13")
def test_spark_submit_without_the_data_directory_of_a_broker(
    cluster: Cluster, kafka: KafkaServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What it needs comes from Kafka, SQL and settings. How it is says Kafka, and a second one waits."""
    stores = MessageStores("postgres", tmp_path, request.getfixturevalue("postgres"))
    log = LogInKafka(kafka.bootstrap, kafka.prefix())
    topic = f"{log.kafka.application_prefix}backend"
    write_records(log, topic)
    settings = settings_on(cluster, log, tmp_path, stores.url)
    config = tmp_path / "embermq.toml"
    config.write_text(toml_of(settings))
    command = [str(Path(sys.executable).with_name("embermq")), "pipeline", "submit", "--config", str(config)]
    environment = os.environ | KEYS | {"JAVA_TOOL_OPTIONS": FAST_START}
    output = (tmp_path / "driver.log").open("wb")

    def submitted(folder: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*command, str(tmp_path / folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )

    def status() -> PipelineStatus:
        found = load_configuration(config_file=config).settings
        return read_status(tmp_path / "nothing", None, look_at_log(found))

    def is_carried() -> bool:
        assert first.poll() is None, (tmp_path / "driver.log").read_text()
        return log.count(topic) >= RECORDS

    first = submitted("own")
    try:
        wait_until(is_carried, 2 * START_S, "records are carried", poll_s=0.5)
        for query in settings.queries:
            log.wait_for_progress(query)
        check_counts(cluster, settings, log, topic, stores)
        wait_until(
            lambda: status().state == "running" and all(query.totals for query in status().queries),
            START_S,
            "it says that it runs, and what it has done",
            poll_s=0.5,
        )
        found = status()
        assert found.pid and found.host == socket.gethostname()
        assert {query.name: query.state for query in found.queries} == dict.fromkeys(QUERIES, "running")
        check_told(log, found)
        second = DriverProcess(Places(tmp_path / "second"), settings, KEYS)
        try:
            wait_until(
                lambda: f"process {found.pid} on" in read_status(tmp_path / "second").waits_for,
                START_S,
                "another one waits",
                poll_s=0.2,
            )
        finally:
            second.end()
        os.kill(found.pid, signal.SIGTERM)
        assert first.wait(START_S) == 0
        assert status().state == "down"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        output.close()
        stores.close()


def check_told(log: LogInKafka, found: PipelineStatus) -> None:
    """What each query has counted, and what was rejected."""
    (rejected,) = rejected_in_kafka(log.positions, 10)
    assert rejected.topic == "r0/x" and "format 9.0" in rejected.reason and rejected.bytes == len(b"broken")
    totals = {query.name: query.totals for query in found.queries}
    assert totals["dispatch"]["records"] == RECORDS + 1
    for sink in ("archive", "lake", "traffic"):
        assert (totals[sink]["records"], totals[sink]["rejected"]) == (RECORDS + 1, 1), sink
    data_bytes = sum(len(b"%d" % i) for i in range(RECORDS))
    assert totals["lake"]["bytes"] == totals["traffic"]["bytes"] == data_bytes


def toml_of(settings: DriverSettings) -> str:
    """As an operator writes it."""
    assert settings.kafka is not None
    listed = ", ".join(f'"{option}"' for option in settings.spark_options)
    return f"""
[stores]
log = "kafka://{settings.kafka.bootstrap}"
session = "redis://127.0.0.1:1"
static = "{settings.message_store}"
[kafka]
prefix = "{settings.kafka.prefix}"
[pipeline]
master = "{settings.master}"
spark_secret_file = "{settings.spark_secret_file}"
spark_options = [{listed}]
lake_dir = "{settings.lake_dir}"
lake_s3_endpoint = "{settings.lake_s3_endpoint}"
"""
