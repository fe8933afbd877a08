"""`embermq pipeline replay`: what it chooses, where it goes, and what a kill of broker or job leaves."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.pipeline.queries import log_rows
from tests.pipeline.replaying import chosen_without_spark
from tests.support.broker_process import EMBERMQ, BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.queue_worker import queue_broker, worker
from tests.support.waiting import wait_for, wait_until

from embermq.cli import message_bar
from embermq.cli.main import main
from embermq.formats.log_record import decode_record, split_batch
from embermq.mqtt.topics.names import matches
from embermq.mqtt.wire.packets import Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.pipeline.jobs import replay as job
from embermq.pipeline.jobs.replay import choose
from embermq.pipeline.jobs.replay_feed import ChosenMessages
from embermq.pipeline.jobs.replay_values import Chosen, ReplayRange
from embermq.pipeline.places import Places
from embermq.pipeline.settings import PipelineSettings
from embermq.pipeline.sinks.lake import Lake
from embermq.pipeline.sources.log_file import BrokerFile, LogFile
from embermq.pipeline.transforms.archive import lake_rows
from embermq.pipeline.transforms.replay import matches_filter

MANY = 400
"""Messages that are replayed, in pieces, while something is killed."""
RATE = 150
Replay = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def with_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The job in this process finds Spark that has started already."""

    @contextmanager
    def started(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(job, "batch_session", started)
    return spark


@pytest.fixture
def replay(with_spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Replay:
    """The command in this process; returns the lines of `--json`."""

    def replayed(broker: BrokerProcess, *words: str, code: int = 0) -> list[dict[str, Any]]:
        capsys.readouterr()
        found = main(["pipeline", "replay", "--data-dir", str(broker.data_dir), "--json", *words])
        told = capsys.readouterr()
        assert found == code, told.err
        return [json.loads(line) for line in told.out.splitlines()] or [{"error": told.err}]

    return replayed


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    queues = '[[queues]]\nname = "kept"\n'
    with queue_broker(
        tmp_path_factory.mktemp("replay"), queues, clients__application_ids="application-*"
    ) as one:
        yield one


def test_filters_are_those_of_mqtt(spark: SparkSession) -> None:
    topics = ["a", "a/b", "a/b/c", "/a", "a/", "$queue/a", "$SYS/x", "a.b", "a\nb/c", "a/b\n", "ä/€"]
    filters = [
        "#",
        "+",
        "a/#",
        "a/+",
        "+/b",
        "+/+",
        "$queue/#",
        "/+",
        "a/b",
        "a/+/c",
        "+/b/#",
        "a.b/#",
        "ä/+",
    ]
    rows = spark.createDataFrame([(one,) for one in topics], "topic string")
    found = rows.select(
        "topic", *(matches_filter(one).alias(str(n)) for n, one in enumerate(filters))
    ).collect()
    for row in found:
        for number, one in enumerate(filters):
            assert row[str(number)] == matches(one, row["topic"]), (one, row["topic"])


def test_older_messages_come_from_the_lake_in_order_and_each_once(
    with_spark: SparkSession, log: LogWriter, places: Places, tmp_path: Path
) -> None:
    """Offsets 0 to 9 are in the lake alone, 10 to 19 in both, 20 to 29 in the log alone; one frame is damaged."""
    words = Properties(user_properties=(("who", "me"),), content_type="text/x")
    for tick in range(6):
        log.append(
            [
                record(
                    f"r{number % 2}/x",
                    b"%d" % number,
                    accepted_ms=NOON_MS + number * 1_000,
                    properties=words,
                    expires_ms=1_000 if number in (3, 23) else 0,
                )
                for number in range(tick * 5, tick * 5 + 5)
            ]
        )
    file = BrokerFile(places.broker)
    lake = Lake(str(places.lake), places)
    lake.open(with_spark, file.log_identity())
    lake.write(lake_rows(log_rows(with_spark, places, 0, 20)))
    lake.close()
    file.close()
    log.trim_below(10)
    log.damage(25, b"\xff" * 40)

    def found(into: Path | None, **asked: Any) -> tuple[Chosen, list[int]]:
        wanted = msgspec.convert({"topic_filter": "#", "log_end": 30} | asked, ReplayRange)
        chosen = choose([PipelineSettings()], places, [wanted], into=into, tasks=0)
        return chosen, [int(row["payload"]) for row in ChosenMessages(into).rows(0)] if into else []

    good = [number for number in range(25) if number not in (3, 23)]
    told, numbers = found(tmp_path / "all")
    assert numbers == good
    assert (told.records, told.chosen, told.expired, told.from_lake) == (25, 23, 2, 9)
    assert (told.missing, told.unreadable) == (0, 5)
    assert (told.oldest_ms, told.newest_ms) == (NOON_MS, NOON_MS + 24_000)
    messages = ChosenMessages(tmp_path / "all")
    assert len(messages) == 23
    assert [int(row["payload"]) for row in messages.rows(11)] == good[11:]
    row = next(messages.rows(8))
    assert (row["offset"], row["accepted_ms"], row["content_type"]) == (9, NOON_MS + 9_000, "text/x")

    by_offset, numbers = found(tmp_path / "offsets", start=8, end_offset=13, topic_filter="r0/+")
    assert (numbers, by_offset.missing) == ([8, 10, 12], 0)
    _, numbers = found(tmp_path / "times", start_ms=NOON_MS + 7_000, end_ms=NOON_MS + 12_000)
    assert numbers == [7, 8, 9, 10, 11]
    dry, _ = found(None)
    assert (dry.chosen, dry.expired, dry.payload_bytes) == (23, 2, told.payload_bytes)
    (places.lake / "_delta_log").rename(places.lake / "gone")
    without, numbers = found(tmp_path / "without", start=8, end_offset=13)
    assert (numbers, without.missing, without.from_lake) == ([10, 11, 12], 2, 0)


def test_what_cannot_be_is_told_in_a_sentence(broker: BrokerProcess, replay: Replay) -> None:
    for words, said in {
        ("--from", "0"): "one of --client, --topic and --queue says where the messages go",
        ("--from", "0", "--topic", "a", "--queue", "q"): "one of --client, --topic and --queue",
        (
            "--from",
            "yesterday",
            "--topic",
            "a",
        ): "--from: 'yesterday' is neither an offset of the log nor a time",
        (
            "--from",
            "99999999",
            "--topic",
            "a",
        ): "--from: 0:99999999 is behind the end of the log, which is 0:",
        ("--from", "0", "--to", "0", "--topic", "a"): "--to: 0 is not behind --from, 0",
        (
            "--from",
            "0",
            "--filter",
            "$share/g/a",
            "--topic",
            "a",
        ): "--filter: a shared filter is for subscriptions",
        (
            "--from",
            "0",
            "--filter",
            "a/#/b",
            "--topic",
            "a",
        ): "--filter: topic filter 'a/#/b': '#' is not the last",
        ("--from", "0", "--topic", "a/+"): "--topic: topic name 'a/+' contains a wildcard",
        ("--from", "0", "--topic", "$SYS/a"): "--topic: '$SYS/a' is no topic to replay to",
        (
            "--from",
            "0",
            "--queue",
            "dlq/kept",
        ): "--queue: topic '$queue/dlq/kept': dead letters are written by",
        ("--from", "0", "--topic", "a", "--rate", "0"): "--rate",
    }.items():
        (told,) = replay(broker, *words, code=2)
        assert said in told["error"] and told["error"].count("\n") == 1, told["error"]
    for words, said in {
        ("--from", "0", "--client", "nobody"): "there is no session of the client id 'nobody'",
        ("--from", "0", "--queue", "nowhere"): "there is no queue 'nowhere'",
    }.items():
        (told,) = replay(broker, *words, code=1)
        assert said in told["error"], told["error"]


def test_to_one_client_alone_also_after_a_crash(broker: BrokerProcess, replay: Replay) -> None:
    begin = log_end(broker)

    async def scenario() -> None:
        device, application = MqttClient("dev-1"), MqttClient("application-1")
        for client in (device, application):
            await client.connect(broker.port, expiry_s=3_600)
            await client.subscribe(Subscription("one/#", 2))
        publisher = MqttClient("pub")
        await publisher.connect(broker.port)
        said = Properties(user_properties=(("who", "me"),), response_topic="back")
        for number in range(4):
            await publisher.publish(
                "one/x", b"%d" % number, qos=1 + number % 2, properties=said, retain=number == 3
            )
        await wait_for(lambda: len(device.messages) == 4 and len(application.messages) == 4, 60)
        asked = ("--from", str(begin), "--filter", "one/+", "--client", "application-1")
        lines = await wait_in_thread(replay, broker, *asked)
        assert lines[-1]["report"]["replayed"] == 4
        await wait_for(lambda: len(application.messages) == 8, 60, "they are replayed to it")
        for number, message in enumerate(application.messages[4:]):
            assert (message.topic, message.payload, message.qos) == ("one/x", b"%d" % number, 1 + number % 2)
            assert message.properties is not None and message.properties.response_topic == "back"
            named = dict(message.properties.user_properties)
            assert named["who"] == "me" and named["replayed-from"] == f"0:{begin + number}"
            assert not message.retain and "replayed-topic" not in named
        await device.ping()
        assert len(device.messages) == 4
        for client in (device, application, publisher):
            client.abort()
        broker.kill()
        broker.start()
        device = MqttClient("dev-1")
        await device.connect(broker.port, clean_start=False, expiry_s=3_600)
        await device.ping()
        assert [message for message in device.messages if not message.dup] == []
        device.close()
        with pytest.raises(AssertionError, match="it is a DEVICE client"):
            replay(broker, "--from", "0", "--client", "dev-1")

    run(scenario(), 300)


@pytest.mark.promise("pipeline-1", "pipeline-2", "pipeline-3", "pipeline-12")
def test_exactly_once_whoever_is_killed(broker: BrokerProcess, replay: Replay) -> None:
    """The job is killed, then the broker, then the job goes on; the range has what is replayed into it."""
    begin = log_end(broker)

    publish_many(broker, MANY)
    words = ("--from", str(begin), "--filter", "many/#", "--topic", "{topic}", "--rate", str(RATE))
    before = (broker.data_dir / "replays").is_dir() and set((broker.data_dir / "replays").iterdir())
    (dry,) = replay(broker, *words, "--dry-run")
    assert (dry["report"]["chosen"], dry["report"]["replayed"]) == (MANY, 0)
    assert log_end(broker) == begin + MANY
    assert before == ((broker.data_dir / "replays").is_dir() and set((broker.data_dir / "replays").iterdir()))
    with interrupted_after(40):
        *_, last = replay(broker, *words, code=130)
    assert last["report"]["interrupted"] and 0 < last["report"]["replayed"] < MANY
    with spawn(broker, *words) as killed:
        wait_for_more(broker, begin, killed)
        killed.kill()
    with spawn(broker, *words) as asked:
        wait_for_more(broker, begin, asked)
        broker.kill()
        broker.start()
        told, errors = asked.communicate(timeout=300)
    assert asked.returncode == 0, errors
    report = json.loads(told.splitlines()[-1])["report"]
    assert (report["replayed"], report["refused_count"], report["log_ends"]) == (MANY, 0, [begin + MANY])
    found = replayed_in(broker, begin)
    assert [mark for mark, _ in found] == [f"0:{begin + number}" for number in range(MANY)], (
        "in order, each once"
    )
    assert [payload for _, payload in found] == [b"%d" % number for number in range(MANY)]
    end = log_end(broker)
    (again,) = replay(broker, *words)
    assert again["report"]["was_done"] and log_end(broker) == end
    *_, once_more = replay(broker, *words[:-2], "--rate", "100000", "--again")
    assert once_more["report"]["replayed"] == 2 * MANY, "what was replayed is in the range now"
    assert not list((broker.data_dir / "replays").rglob("*.parquet"))


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-12")
def test_to_a_queue_with_a_spark_of_its_own(broker: BrokerProcess) -> None:
    begin = log_end(broker)

    async def publish() -> None:
        publisher = MqttClient("pub")
        await publisher.connect(broker.port)
        for number in range(5):
            said = Properties(
                user_properties=(("dedup-id", f"d{number}"), ("partition-key", "k"), ("delay", "1h"))
            )
            await publisher.publish("$queue/kept", b"%d" % number, qos=1, properties=said)
        publisher.close()

    run(publish())
    with spawn(broker, "--from", str(begin), "--filter", "$queue/kept", "--queue", "kept") as asked:
        told, errors = asked.communicate(timeout=300)
    assert asked.returncode == 0, errors
    report = json.loads(told.splitlines()[-1])["report"]
    assert (report["chosen"], report["replayed"]) == (5, 5)

    async def scenario() -> None:
        client = await worker(broker, "g-1")
        await client.consumes("$queue/kept")
        for number in range(5):
            message = await client.next()
            assert message.payload == b"%d" % number and message.properties["partition-key"] == "k"
            assert "delay" not in message.properties, "the others wait for an hour"
            assert "replayed-topic" not in message.properties
            await client.acks(message)
        client.close()

    run(scenario())


def test_a_java_that_outlives_its_job_adds_nothing(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run is killed while Spark chooses; what that writes later is not what the next run has chosen."""
    publish_many(broker, 3)
    tried: list[Path] = []

    def choose(
        settings: object, places: Places, wanted: Sequence[ReplayRange], *, into: Path, tasks: int
    ) -> Chosen:
        tried.append(into)
        if len(tried) == 1:
            raise KeyboardInterrupt
        found = chosen_without_spark(settings, places, wanted, into=into, tasks=tasks)
        tried[0].mkdir(parents=True, exist_ok=True)
        shutil.copytree(into, tried[0], dirs_exist_ok=True)
        return found

    monkeypatch.setattr(job, "choose", choose)
    asked = [
        "pipeline",
        "replay",
        "--data-dir",
        str(broker.data_dir),
        "--from",
        "earliest",
        "--topic",
        "late/java",
    ]
    end = log_end(broker)
    assert main(asked) == 130
    assert main(asked) == 0
    assert log_end(broker) == 2 * end
    with interrupted_after(0):
        assert main([*asked, "--again", "--json"]) == 130
    for file in (broker.data_dir / "replays").rglob("part-1.parquet"):
        file.unlink()
    capsys.readouterr()
    assert main(asked) == 1
    assert "files of the chosen messages are missing; --again begins anew" in capsys.readouterr().err


@contextmanager
def interrupted_after(count: int) -> Iterator[None]:
    """Ctrl-C in this process, once that many are replayed."""

    def progress(done: int, total: int) -> None:
        if done >= count:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_bar, "print_progress", progress)
        yield


def publish_many(broker: BrokerProcess, count: int) -> None:
    async def publish() -> None:
        publisher = MqttClient("pub")
        await publisher.connect(broker.port)
        for number in range(count):
            await publisher.publish(f"many/{number % 7}", b"%d" % number, qos=1)
        publisher.close()

    run(publish(), 300)


def wait_for_more(broker: BrokerProcess, begin: int, asked: subprocess.Popen[bytes]) -> None:
    """Until the replay has come further; fails when it has ended."""
    before = len(replayed_in(broker, begin))

    def has_more() -> bool:
        assert asked.poll() is None, asked.communicate()
        return len(replayed_in(broker, begin)) > before + 30

    wait_until(has_more, 120, "it goes on")


def spawn(broker: BrokerProcess, *words: str) -> subprocess.Popen[bytes]:
    words_typed = [str(EMBERMQ), "pipeline", "replay", "--data-dir", str(broker.data_dir), "--json", *words]
    return subprocess.Popen(words_typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


async def wait_in_thread(call: Replay, *words: Any) -> list[dict[str, Any]]:
    return await asyncio.to_thread(call, *words)


def log_end(broker: BrokerProcess) -> int:
    log = LogFile(Places(broker.data_dir).log)
    try:
        return log.end() or 0
    finally:
        log.close()


def replayed_in(broker: BrokerProcess, begin: int) -> list[tuple[str, bytes]]:
    """Where each replayed message came from, and its payload, in the order of the log."""
    log = LogFile(Places(broker.data_dir).log)
    found: list[tuple[str, bytes]] = []
    try:
        for batch in log.batches(begin, log.end() or 0):
            for index, frame in enumerate(split_batch(batch.body, batch.count), batch.base):
                message = decode_record(frame).message
                said = message.properties.user_properties if message.properties is not None else ()
                if index >= begin and "replayed-from" in dict(said):
                    found.append((dict(said)["replayed-from"], message.payload))
    finally:
        log.close()
    return found
