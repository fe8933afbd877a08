"""Rules over a log in Kafka: what they publish comes once, by position, whoever is killed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from tests.pipeline.feeding import AT_ONCE, DEADLINE_S, RecordedKafka, WatchedBulk
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.log_writer import NOON_MS, record
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.rule_receiver import receiving
from tests.support.waiting import wait_until

from embermq.cli.main import main
from embermq.formats.kafka_record import decode_kafka_record
from embermq.formats.log_record import slot_field
from embermq.pipeline.errors import BrokerAway
from embermq.pipeline.jobs.query_job import JobSetup
from embermq.pipeline.places import Places
from embermq.pipeline.rules import trying
from embermq.pipeline.rules.live import Care, RuleKind
from embermq.pipeline.rules.session import RuleSession
from embermq.pipeline.rules.set_aside import set_aside_of
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.rules.targets import RuleDoor, RuleTaken
from embermq.pipeline.turns import Turns

RULES = {
    "even": RuleSettings(
        sql="SELECT concat('even/', topic) AS topic, payload FROM messages WHERE int(payload) % 2 = 0", qos=2
    ),
    "kept": RuleSettings(sql="SELECT payload FROM messages", to="queue", queue="kept"),
    "decoded": RuleSettings(sql="SELECT 'decoded' AS topic, url_decode(payload) AS payload FROM messages"),
}
MANY = 20
BACKOFF_MS = 500
"""Each beginning costs CPU."""
BAD = b"%z"


@contextmanager
def ruling(
    spark: SparkSession, log: LogInKafka, places: Places, rules: Mapping[str, RuleSettings]
) -> Iterator[WatchedBulk]:
    """As the driver runs them."""
    stopping, session, care = threading.Event(), RuleSession(spark), Care(places)
    settings = replace(
        AT_ONCE, max_records_per_batch=50, rules=rules, kafka=log.kafka, backoff_first_ms=BACKOFF_MS
    )
    kinds = [RuleKind(name, rule, session, care) for name, rule in rules.items()]
    view, turns = RecordedKafka(log, settings, spark), Turns(["rules"])
    bulk = WatchedBulk(kinds, JobSetup(settings, places), view, spark, stopping, turns=turns, turn="rules")
    with closing(view):
        bulk.start()
        try:
            yield bulk
        finally:
            stopping.set()
            bulk.join()


def publish(broker: BrokerProcess, *payloads: bytes) -> None:
    async def published() -> None:
        client = MqttClient("publisher")
        await client.connect(broker.port)
        for number, payload in enumerate(payloads):
            await client.publish(f"s/{number % 3}", payload, qos=1)
        client.abort()

    run(published(), DEADLINE_S)


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


class Found:
    """What a log in Kafka has: each message with its position and user properties."""

    def __init__(self, log: LogInKafka) -> None:
        self.messages = []
        for one in log.read(log.kafka.log_topic):
            record = decode_kafka_record(one.key(), one.value(), one.headers()).record  # type: ignore[arg-type]
            properties = record.message.properties
            said = dict(properties.user_properties) if properties is not None else {}
            self.messages.append((f"{one.partition()}:{one.offset()}", record.message, said))

    def inputs(self) -> list[tuple[str, bytes]]:
        return [(at, message.payload) for at, message, said in self.messages if "rule" not in said]

    def sources(self, rule: str) -> list[str]:
        """Of which messages those of a rule come, in the order of the log."""
        return [said["rule-of"] for _, _, said in self.messages if said.get("rule") == rule]


def has_sources(log: LogInKafka, rule: str, many: int) -> bool:
    return len(Found(log).sources(rule)) >= many


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2")
def test_each_message_comes_once_by_drivers_that_follow_one_another(
    spark: SparkSession, kafka: KafkaServer, servers: dict[str, object], tmp_path: Path
) -> None:
    rules = {"even": RULES["even"]}
    with BrokerProcess(tmp_path / "data", settings=servers) as broker:
        log, places = LogInKafka(kafka.bootstrap, str(servers["kafka.prefix"]), 1), Places(broker.data_dir)
        with ruling(spark, log, places, rules) as bulk:
            bulk.wait_for_state("running")
            publish(broker, *numbers(0, MANY))
            wait_until(partial(has_sources, log, "even", 1), DEADLINE_S, "the first ones")
        publish(broker, *numbers(MANY, 2 * MANY))
        with ruling(spark, log, places, rules) as bulk:
            wait_until(partial(has_sources, log, "even", MANY), DEADLINE_S, "all")
            bulk.wait_for_positions(log.ends())
        found = Found(log)
        assert found.sources("even") == [at for at, payload in found.inputs() if not int(payload) % 2]
        assert {
            (one.qos, one.retain, one.publisher) for _, one, said in found.messages if "rule" in said
        } == {(2, False, "rule:even")}


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2", "pipeline-14")
def test_each_message_comes_once_over_kills_and_lost_answers(
    spark: SparkSession,
    kafka: KafkaServer,
    servers: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asks, calls = RuleDoor._ask, [0]

    def loses_answers(door: RuleDoor, asked_for: Mapping[str, object]) -> RuleTaken:
        """The broker has done it, and nobody hears of it, three times."""
        answer = asks(door, asked_for)
        calls[0] += 1
        if calls[0] in (4, 8, 12):
            raise BrokerAway("the answer is lost")
        return answer

    with BrokerProcess(tmp_path / "data", settings=servers) as broker, receiving() as receiver:
        hook = RuleSettings(sql="SELECT payload FROM messages", to="webhook", url=receiver.url)
        rules = RULES | {"hook": hook}
        log, places = LogInKafka(kafka.bootstrap, str(servers["kafka.prefix"]), 1), Places(broker.data_dir)
        with ruling(spark, log, places, rules) as bulk:
            bulk.wait_for_state("running")
            monkeypatch.setattr(RuleDoor, "_ask", loses_answers)
            publish(broker, *numbers(0, MANY), BAD)
            broker.kill()
            broker.start()
            publish(broker, *numbers(MANY, 2 * MANY))
        # The driver is gone in the midst of it; the next one goes on.
        with ruling(spark, log, places, rules) as bulk:
            publish(broker, *numbers(2 * MANY, 3 * MANY))
            wait_until(lambda: len(receiver.got) >= 3 * MANY + 1, DEADLINE_S, "the webhook has all")
            inputs = Found(log).inputs()
            everything = [at for at, _ in inputs]
            good = [at for at, payload in inputs if payload != BAD]
            even = [at for at, payload in inputs if payload != BAD and not int(payload) % 2]
            wanted = {"even": even, "kept": everything, "decoded": good}
            for rule, sources in wanted.items():
                wait_until(partial(has_sources, log, rule, len(sources)), DEADLINE_S, rule)
            ends = log.ends()
            bulk.wait_for_positions(ends)
            assert bulk.report("rule:decoded").totals["failed"] == len(everything) - len(good)
            wait_until(
                lambda: log.positions.progress()["rule:even"] == ends, DEADLINE_S, "its position is published"
            )
        found = Found(log)
        assert {rule: found.sources(rule) for rule in RULES} == wanted
        assert all(at.startswith("0:") for at in everything) and len(everything) >= 3 * MANY + 1
        posted = list(dict.fromkeys((sent_id.split(":", 2)[2], body) for sent_id, _, body, _ in receiver.got))
        assert posted == [(f"{at}:0", payload) for at, payload in inputs], "in order, repeats aside"
        (aside, *_) = set_aside_of(places.rules, "decoded", 10)
        assert (aside.partition, f"0:{aside.offset}" in everything) == (0, True)


@pytest.fixture
def with_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command in this process finds Spark that has started already."""

    @contextmanager
    def started(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(trying, "batch_session", started)


@pytest.mark.usefixtures("with_spark")
def test_a_rule_is_tried_on_a_log_in_kafka(
    kafka: KafkaServer, servers: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No broker runs. A range is one of positions, or of time, over all partitions."""
    log = LogInKafka(kafka.bootstrap, str(servers["kafka.prefix"]))
    log.append(record(f"s/{n % 5}", b"%d" % n, accepted_ms=NOON_MS + n * 1_000) for n in range(MANY))
    sent = [
        (one.partition() or 0, one.offset() or 0, one.value() or b"") for one in log.read(log.kafka.log_topic)
    ]
    even = [(partition, offset, value) for partition, offset, value in sent if not int(value) % 2]
    assert {partition for partition, _, _ in even} == {0, 1}
    config = tmp_path / "ember.toml"
    config.write_text(f'[rules.even]\nsql = "{RULES["even"].sql}"\n')
    given = [word for key, value in servers.items() for word in ("--set", f"{key}={value}")]

    def tried(*words: str, code: int = 0) -> tuple[int, list[tuple[int, int, bytes]], str]:
        capsys.readouterr()
        place = ["--config", str(config), "--data-dir", str(tmp_path / "data"), "--json", *given]
        assert main(["rules", "test", "even", *place, *words]) == code
        told = capsys.readouterr()
        found: dict[str, Any] = json.loads(told.out) if code == 0 else {"records": 0, "shown": []}
        shown = [(one["partition"], one["offset"], one["payload"].encode()) for one in found["shown"]]
        return found["records"], shown, told.err

    assert tried("--from", "0:1", "--to", "1:1")[:2] == (
        sum((0, 1) <= one[:2] < (1, 1) for one in sent),
        [one for one in even if (0, 1) <= one[:2] < (1, 1)],
    )
    late = [one for one in sent if int(one[2]) >= MANY // 2]
    moment = datetime.fromtimestamp(NOON_MS / 1_000 + MANY // 2, UTC)
    seen, shown, _ = tried("--from", moment.isoformat())
    assert (seen, shown) == (len(late), [one for one in late if one in even])
    assert "is behind the end of the log, which is 1:" in tried("--from", "2:0", code=2)[2]
    log.append(record("s/0", b"0", unknown_fields=(slot_field(1, n),)) for n in range(MANY))
    for name, value in (("slots", 2), ("etcd", "etcd://127.0.0.1/cars"), ("listen", "127.0.0.1:7946")):
        given += ["--set", f"cluster.{name}={value}"]
    given += ["--set", 'pipeline.queries=["dispatch"]']
    assert tried("--from", "earliest", "--slot", "0")[:2] == (MANY, even), "copies are of the other slot"
    assert "--slot: the cluster has slots 0 to 1" in tried("--from", "earliest", code=2)[2]
