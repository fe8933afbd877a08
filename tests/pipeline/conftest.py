"""One Spark session a test process; each test has its own data directory."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.dead_letters import Letter, Redrive, words_for
from tests.pipeline.driver_process import DriverProcess
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.log_writer import LogWriter
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_server import KafkaServer

from embermq.cli.main import main
from embermq.pipeline.driver import register_sources
from embermq.pipeline.java import find_java
from embermq.pipeline.jobs import redrive as job
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.places import Places
from embermq.pipeline.session import start_session
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks.sink_file import SinkFile

NOWHERE = KafkaLog(bootstrap="127.0.0.1:1")
"""So that the session can read Kafka; which one is for each query to say."""
IN_S3 = "s3a://nowhere/lake"
"""So that the session can write lakes in object storage; which one is for each test to say."""
PARTITIONS_MAX = 2
"""Of a log that a test reads in real-time mode."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    places = Places(tmp_path_factory.mktemp("spark"))
    with tempfile.TemporaryDirectory(prefix="embermq-") as sockets:
        session = start_session(
            DriverSettings(kafka=NOWHERE, lake_dir=IN_S3),
            places,
            find_java(places.java_wrapper),
            Path(sockets),
            PARTITIONS_MAX,
        )
        register_sources(session)
        session.conf.set("spark.sql.streaming.stopTimeout", "60000")  # of a test that stops its queries
        # To compile a query costs more than to run it over a few records; drivers of their own have it as it is.
        session.conf.set("spark.sql.codegen.wholeStage", "false")
        session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        yield session
        session.stop()


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "data")


@pytest.fixture
def log(places: Places) -> Iterator[LogWriter]:
    writer = LogWriter(places.data_dir)
    yield writer
    writer.close()


@pytest.fixture
def kafka_log(kafka: KafkaServer) -> LogInKafka:
    return LogInKafka(kafka.bootstrap, kafka.prefix())


@pytest.fixture(autouse=True)
def _sink_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those that a test has opened are closed when it is over."""
    with ExitStack() as opened:
        opens = SinkFile.__init__

        def init(self: SinkFile, *arguments: Any) -> None:
            opens(self, *arguments)
            opened.callback(self.close)

        monkeypatch.setattr(SinkFile, "__init__", init)
        yield


@pytest.fixture
def drivers() -> Iterator[list[DriverProcess]]:
    """Filled by the test, ended with all that they started."""
    started: list[DriverProcess] = []
    yield started
    for driver in started:
        driver.end()


@pytest.fixture
def redrive(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Redrive:
    """The command in this process, with Spark that has started already; returns the lines of `--json`."""

    @contextmanager
    def started(*_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(job, "batch_session", started)

    def command(broker: BrokerProcess, queue: str, *words: str, code: int = 0) -> list[Letter]:
        capsys.readouterr()
        found = main([*words_for(broker, queue), "--json", *words])
        told = capsys.readouterr()
        assert found == code, told.err
        return [json.loads(line) for line in told.out.splitlines()] if code == 0 else [{"error": told.err}]

    return command
