"""Rules that run: what they publish comes once, in order, whoever is killed, and one that fails stops no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from tests.pipeline.feeding import AT_ONCE, DEADLINE_S, WatchedBulk
from tests.pipeline.replaying import messages_in
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_until

from embermq.pipeline.errors import BrokerAway
from embermq.pipeline.jobs.bulk_log import EmbeddedLog
from embermq.pipeline.jobs.query_job import JobSetup
from embermq.pipeline.places import Places
from embermq.pipeline.rules.door import RuleDoor, RuleTaken
from embermq.pipeline.rules.live import RuleKind
from embermq.pipeline.rules.session import RuleSession
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.turns import Turns

HOT = "SELECT concat('hot/', split(topic, '/')[1]) AS topic, payload FROM messages WHERE int(payload) % 2 = 0"
FAILS = (
    "SELECT topic, string(from_json(payload, 'a int', map('mode', 'FAILFAST')).a) AS payload FROM messages"
)
RULES = {
    "hot": RuleSettings(sql=HOT, qos=2),
    "echo": RuleSettings(sql="SELECT concat('echo/', topic) AS topic, payload FROM messages"),
    "kept": RuleSettings(sql="SELECT payload FROM messages", to="queue", queue="kept"),
    "bad": RuleSettings(sql="SELECT reflect('a', 'b') AS payload, topic FROM messages"),
    "nowhere": RuleSettings(sql="SELECT '$SYS/x' AS topic, payload FROM messages"),
    "fails": RuleSettings(sql=FAILS),
}  # fmt: skip
GOOD = ("rule:hot", "rule:echo", "rule:kept")
MANY = 60


@contextmanager
def ruling(spark: SparkSession, places: Places, rules: Mapping[str, RuleSettings]) -> Iterator[WatchedBulk]:
    """As the driver runs them, in batches of 20."""
    stopping, session = threading.Event(), RuleSession(spark)
    settings = replace(AT_ONCE, max_records_per_batch=20, split_records=1_000, rules=rules)
    kinds = [RuleKind(name, rule, session) for name, rule in rules.items()]
    log = EmbeddedLog(settings, places, spark)
    turns = Turns(["rules"])
    bulk = WatchedBulk(kinds, JobSetup(settings, places), log, spark, stopping, turns=turns, turn="rules")
    bulk.start()
    try:
        yield bulk
    finally:
        stopping.set()
        bulk.join()


def publish(broker: BrokerProcess, payloads: Sequence[int]) -> None:
    async def published() -> None:
        client = MqttClient("publisher")
        await client.connect(broker.port)
        for number in payloads:
            await client.publish(f"s/{number % 3}", b"%d" % number, qos=1)
        client.abort()

    run(published(), DEADLINE_S)


def sources(places: Places, prefix: str) -> list[str]:
    """Of which messages those below a topic come, in the order of the log."""
    return [
        dict(message.properties.user_properties)["rule-of"]
        for _, message in messages_in(places)
        if message.topic.startswith(prefix) and message.properties is not None
    ]


def wait_for_one(rules: WatchedBulk, state: str, name: str) -> None:
    wait_until(lambda: rules.report(name).state == state, DEADLINE_S, f"{name} {state}")


def wait_for_state(rules: WatchedBulk, state: str, *names: str) -> None:
    for name in names:
        wait_for_one(rules, state, name)


def wait_for_sources(places: Places, prefix: str, many: int) -> None:
    wait_until(lambda: len(sources(places, prefix)) >= many, DEADLINE_S, prefix)


@pytest.mark.promise("pipeline-2", "pipeline-14")
@pytest.mark.timeout(600)
def test_each_message_comes_once_over_kills_and_lost_answers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, calls = RuleDoor._ask, [0]

    def loses_answers(door: RuleDoor, asked_for: dict[str, object]) -> RuleTaken:
        """The broker has done it, and nobody hears of every fifth."""
        answer = asks(door, asked_for)
        calls[0] += 1
        if not calls[0] % 5:
            raise BrokerAway("the answer is lost")
        return answer

    with BrokerProcess(tmp_path / "data") as broker:
        places = Places(broker.data_dir)
        publish(broker, [0, 1])  # nobody's: the rules begin behind them
        with ruling(spark, places, RULES) as rules:
            wait_for_state(rules, "running", *GOOD, "rule:nowhere")
            monkeypatch.setattr(RuleDoor, "_ask", loses_answers)
            publish(broker, range(MANY))
            broker.kill()
            broker.start()
            publish(broker, range(MANY, 2 * MANY))
        # The driver is gone in the midst of it; the next one goes on.
        with ruling(spark, places, RULES) as rules:
            publish(broker, range(2 * MANY, 3 * MANY))
            inputs = [
                (offset, int(message.payload))
                for offset, message in messages_in(places)
                if message.topic.startswith("s/")
            ][2:]
            assert len(inputs) >= 3 * MANY
            everything = [f"0:{offset}" for offset, _ in inputs]
            even = [f"0:{offset}" for offset, number in inputs if number % 2 == 0]
            for prefix, wanted in (("hot/", even), ("echo/s/", everything), ("$queue/kept", everything)):
                wait_for_sources(places, prefix, len(wanted))
            wait_until(
                lambda: rules.report("rule:nowhere").totals.get("refused", 0) > 0, DEADLINE_S, "refused"
            )
            wait_for_state(rules, "backoff", "rule:bad", "rule:fails")
            assert "reflect is none that a rule may use" in rules.report("rule:bad").last_error
        assert sources(places, "hot/") == even
        assert sources(places, "echo/s/") == everything and not sources(places, "echo/echo/")
        assert sources(places, "$queue/kept") == everything
        of_hot = [message for _, message in messages_in(places) if message.topic.startswith("hot/")]
        assert {(one.qos, one.retain, one.publisher) for one in of_hot} == {(2, False, "rule:hot")}
