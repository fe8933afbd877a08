"""`embermq pipeline replay` of a log in Kafka: what it chooses, where it goes, and what a kill leaves."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.log_writer import NOON_MS, record
from tests.support.broker_process import EMBERMQ, BrokerProcess
from tests.support.kafka_dispatcher import KafkaDispatcher
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for, wait_until

from embermq.cli import message_bar
from embermq.cli.main import main
from embermq.formats.kafka_record import decode_kafka_record
from embermq.formats.log_record import LogRecord
from embermq.model.position import position_of
from embermq.mqtt.wire.packets import Subscription
from embermq.pipeline.jobs import replay as job
from embermq.pipeline.jobs.kafka_ranges import read_ranges
from embermq.pipeline.jobs.replay import choose
from embermq.pipeline.jobs.replay_feed import ChosenMessages
from embermq.pipeline.jobs.replay_values import Chosen, ReplayRange
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks.lake import Lake
from embermq.pipeline.transforms.archive import lake_rows
from embermq.pipeline.transforms.kafka_records import records_from_kafka

RECORDS, GONE, IN_LAKE = 40, 4, 6
MANY = 300
Replay = Callable[..., dict[str, Any]]


@pytest.fixture
def with_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The job in this process finds Spark that has started already."""

    @contextmanager
    def started(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(job, "batch_session", started)
    return spark


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-3", "pipeline-12")
def test_log_and_lake_are_one_range_of_positions(
    with_spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    """Of both partitions the first offsets are in the lake alone, the next ones in both; one record is damaged."""
    log, places = LogInKafka(kafka.bootstrap, kafka.prefix()), Places(tmp_path / "data")
    log.append(
        record(
            f"r{number}/x",
            b"%d" % number,
            accepted_ms=NOON_MS + number * 1_000,
            expires_ms=1_000 if number == RECORDS - 1 else 0,
        )
        for number in range(RECORDS)
    )
    log.append_raw(b"r/x", b"x", [("v", b"9.0")])
    log.flush()
    ends = log.ends()
    good = {
        (one.partition() or 0, one.offset() or 0): int(one.value() or b"")
        for one in log.read(log.kafka.log_topic)
        if one.value() not in (b"x", b"%d" % (RECORDS - 1))
    }
    assert min(ends.values()) > IN_LAKE
    rows = read_ranges(
        with_spark, log.kafka, log.kafka.log_topic, dict.fromkeys(ends, 0), dict.fromkeys(ends, IN_LAKE)
    )
    assert rows is not None
    lake = Lake(str(places.lake), places)
    lake.open(with_spark, log.positions.archive_id(), list(ends))
    lake.write(lake_rows(records_from_kafka(rows, log.kafka.application_prefix)).persist())
    lake.close()
    log.trim(dict.fromkeys(ends, GONE))
    log_end = position_of(1, ends[1])

    def found(name: str, **asked: Any) -> tuple[Chosen, list[tuple[int, int]]]:
        wanted = msgspec.convert({"topic_filter": "#", "log_end": log_end} | asked, ReplayRange)
        into = tmp_path / name
        told = choose([DriverSettings(kafka=log.kafka)], places, [wanted], into=into, tasks=0)
        rows = list(ChosenMessages(into).rows(0))
        assert all(good[row["partition"], row["offset"]] == int(row["payload"]) for row in rows)
        return told, [(row["partition"], row["offset"]) for row in rows]

    told, positions = found("all")
    assert positions == sorted(good, key=lambda at: (at[1] >= GONE, at)), "the lake first, then by position"
    assert (told.chosen, told.expired, told.from_lake) == (RECORDS - 1, 1, 2 * GONE)
    assert (told.missing, told.unreadable) == (0, 1)
    (places.lake / "_delta_log").rename(places.lake / "gone")
    told, positions = found("without", start=2, end_ms=NOON_MS + 20_000)
    assert (told.missing, told.from_lake) == (2 * GONE - 2, 0)
    assert positions == [at for at in sorted(good) if at[1] >= GONE and good[at] < 20]


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2", "pipeline-3", "pipeline-12")
@pytest.mark.usefixtures("with_spark")
def test_exactly_once_to_a_topic_and_to_one_client(
    servers: dict[str, object], kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job is interrupted, then the broker killed; the range has what is replayed into it."""
    settings = servers | {"clients.application_ids": "application-*"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        typed = ["pipeline", "replay", "--data-dir", str(broker.data_dir), "--json", *given]
        prefix = str(servers["kafka.prefix"])

        def replay(*words: str, code: int = 0) -> dict[str, Any]:
            capsys.readouterr()
            assert main([*typed, *words]) == code, capsys.readouterr().err
            *_, last = capsys.readouterr().out.splitlines()
            found: dict[str, Any] = json.loads(last)["report"]
            return found

        def records() -> list[LogRecord]:
            log = LogInKafka(kafka.bootstrap, prefix, 1)
            return [
                decode_kafka_record(one.key(), one.value(), one.headers()).record  # type: ignore[arg-type]
                for one in log.read(log.kafka.log_topic)
            ]

        def marks() -> list[str]:
            """Where each replayed message came from, in the order of the log."""
            return [mark for one in records() if (mark := said(one).get("replayed-from"))]

        run(publish(broker, "many", MANY), 120)
        words = ("--from", "0:0", "--filter", "many/#", "--topic", "{topic}")
        assert replay(*words, "--dry-run")["chosen"] == MANY
        with interrupted_after(40):
            assert 0 < replay(*words, "--rate", "200", code=130)["replayed"] < MANY
        before = len(marks())
        with subprocess.Popen(
            [str(EMBERMQ), *typed, *words, "--rate", "100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as asked:
            wait_until(lambda: len(marks()) > before + 20, 60, "it goes on", poll_s=0.1)
            broker.kill()
            broker.start()
            _, errors = asked.communicate(timeout=300)
        assert asked.returncode == 0, errors
        assert marks() == [f"0:{number}" for number in range(MANY)]
        again = [one.message.payload for one in records()][MANY:]
        assert again == [b"%d" % number for number in range(MANY)]
        assert replay(*words)["was_done"] and len(records()) == 2 * MANY
        with KafkaDispatcher(kafka, prefix) as _:
            run(to_one_client(broker, replay, len(records())), 120)


async def to_one_client(broker: BrokerProcess, replay: Replay, begin: int) -> None:
    device, application = MqttClient("dev"), MqttClient("application-1")
    for client in (device, application):
        await client.connect(broker.port, expiry_s=3_600)
        await client.subscribe(Subscription("one/#", 1))
    await publish(broker, "one", 5)
    await wait_for(lambda: len(device.messages) == len(application.messages) == 5, 60, "they are there")
    told = await asyncio.to_thread(
        replay, "--from", f"0:{begin}", "--filter", "one/#", "--client", "application-1"
    )
    assert told["replayed"] == 5
    await wait_for(lambda: len(application.messages) == 10, 60, "they are replayed")
    assert [one.payload for one in application.messages[5:]] == [b"%d" % number for number in range(5)]
    device.abort()
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)
    back = MqttClient("dev")
    await back.connect(broker.port, clean_start=False, expiry_s=3_600)
    await back.ping()
    assert [one for one in back.messages if not one.dup] == []
    back.close()


async def publish(broker: BrokerProcess, root: str, count: int) -> None:
    publisher = MqttClient("pub")
    await publisher.connect(broker.port)
    for number in range(count):
        await publisher.publish(f"{root}/{number % 7}", b"%d" % number, qos=1)
    publisher.close()


def said(one: LogRecord) -> dict[str, str]:
    properties = one.message.properties
    return dict(properties.user_properties) if properties is not None else {}


@contextmanager
def interrupted_after(count: int) -> Iterator[None]:
    """Ctrl-C in this process, once that many are replayed."""

    def progress(done: int, total: int) -> None:
        if done >= count:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_bar, "print_progress", progress)
        yield
