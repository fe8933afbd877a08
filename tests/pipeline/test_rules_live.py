"""Rules that run: what they publish comes once, in order, whoever is killed, and one that fails stops no other."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from tests.pipeline.feeding import AT_ONCE, DEADLINE_S, WatchedBulk
from tests.pipeline.log_writer import LogWriter
from tests.pipeline.replaying import messages_in
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.rule_receiver import receiving
from tests.support.waiting import wait_until

from embermq.cli.main import main
from embermq.pipeline.errors import BrokerAway, RuleStuck
from embermq.pipeline.jobs.bulk_log import EmbeddedLog
from embermq.pipeline.jobs.query_job import JobSetup
from embermq.pipeline.paused import pause_reason
from embermq.pipeline.places import Places
from embermq.pipeline.rules import live
from embermq.pipeline.rules.evaluating import Evaluation, MadeRows
from embermq.pipeline.rules.live import Care, RuleKind
from embermq.pipeline.rules.session import RuleSession
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.rules.targets import RuleDoor, RuleTaken
from embermq.pipeline.turns import Turns

HOT = (
    "SELECT IF(payload = '4', '$SYS/x', concat('hot/', split(topic, '/')[1])) AS topic, payload FROM messages "
    "WHERE int(payload) % 2 = 0"
)
DECODED = "SELECT concat('decoded/', topic) AS topic, url_decode(payload) AS payload FROM messages"
RULES = {
    "hot": RuleSettings(sql=HOT, qos=2),
    "kept": RuleSettings(sql="SELECT payload FROM messages", to="queue", queue="kept"),
    "decoded": RuleSettings(sql=DECODED),
    "bad": RuleSettings(sql="SELECT reflect('a', 'b') AS payload, topic FROM messages"),
}
GOOD = ("rule:hot", "rule:kept", "rule:decoded")
MANY = 20
BAD = b"%z"


@contextmanager
def ruling(spark: SparkSession, places: Places, rules: Mapping[str, RuleSettings]) -> Iterator[WatchedBulk]:
    """As the driver runs them."""
    stopping, session, care = threading.Event(), RuleSession(spark), Care(places)
    settings = replace(AT_ONCE, max_records_per_batch=50, split_records=1_000, rules=rules)
    kinds = [RuleKind(name, rule, session, care) for name, rule in rules.items()]
    log = EmbeddedLog(settings, places, spark)
    turns = Turns(["rules"])
    bulk = WatchedBulk(kinds, JobSetup(settings, places), log, spark, stopping, turns=turns, turn="rules")
    bulk.start()
    try:
        yield bulk
    finally:
        stopping.set()
        bulk.join()


def publish(broker: BrokerProcess, payloads: Sequence[int], *others: bytes) -> None:
    async def published() -> None:
        client = MqttClient("publisher")
        await client.connect(broker.port)
        for number, payload in enumerate([*(b"%d" % number for number in payloads), *others]):
            await client.publish(f"s/{number % 3}", payload, qos=1)
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
def test_each_message_comes_once_over_kills_and_lost_answers(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a rule publishes comes once by position, though the broker dies and its answers are lost."""
    asks, calls = RuleDoor._ask, [0]

    def loses_answers(door: RuleDoor, asked_for: Mapping[str, object]) -> RuleTaken:
        """The broker has done it, and nobody hears of one in four, three times."""
        answer = asks(door, asked_for)
        calls[0] += 1
        if calls[0] in (4, 8, 12):
            raise BrokerAway("the answer is lost")
        return answer

    with BrokerProcess(tmp_path / "data") as broker, receiving() as receiver:
        hook = RuleSettings(sql="SELECT payload FROM messages", to="webhook", url=receiver.url)
        all_rules = RULES | {"hook": hook}
        places = Places(broker.data_dir)
        publish(broker, [0, 1])  # nobody's: the rules begin behind them
        with ruling(spark, places, all_rules) as rules:
            wait_for_state(rules, "running", *GOOD, "rule:hook")
            wait_for_state(rules, "backoff", "rule:bad")
            assert "reflect is none that a rule may use" in rules.report("rule:bad").last_error
            monkeypatch.setattr(RuleDoor, "_ask", loses_answers)
            publish(broker, range(MANY), BAD)
            broker.kill()
            broker.start()
            publish(broker, range(MANY, 2 * MANY))
        # The driver is gone in the midst of it; the next one goes on.
        with ruling(
            spark, places, {name: rule for name, rule in all_rules.items() if name != "bad"}
        ) as rules:
            publish(broker, range(2 * MANY, 3 * MANY))
            inputs = [
                (f"0:{offset}", message.payload)
                for offset, message in messages_in(places)
                if message.topic.startswith("s/")
            ][2:]
            assert len(inputs) >= 3 * MANY + 1
            everything = [at for at, _ in inputs]
            numbers = [at for at, payload in inputs if payload != BAD]
            even = [at for at, payload in inputs if payload not in (BAD, b"4") and not int(payload) % 2]
            for prefix, wanted in (("hot/", even), ("decoded/", numbers), ("$queue/kept", everything)):
                wait_for_sources(places, prefix, len(wanted))
            rules.wait_for_position(max(int(at[2:]) for at in everything) + 1)
            # One message is no URL, and the row of another one goes where nobody may publish.
            assert rules.report("rule:decoded").totals["failed"] == len(everything) - len(numbers)
            assert rules.report("rule:hot").totals["refused"] == sum(payload == b"4" for _, payload in inputs)
        assert sources(places, "hot/") == even
        assert sources(places, "decoded/s/") == numbers and not sources(places, "decoded/decoded/")
        assert sources(places, "$queue/kept") == everything
        posted = list(dict.fromkeys((sent_id.split(":")[3], body) for sent_id, _, body, _ in receiver.got))
        assert posted == [(at.removeprefix("0:"), payload) for at, payload in inputs], (
            "in order, repeats aside"
        )
        of_hot = [message for _, message in messages_in(places) if message.topic.startswith("hot/")]
        assert {(one.qos, one.retain, one.publisher) for one in of_hot} == {(2, False, "rule:hot")}
        assert main(["rules", "errors", "decoded", "--data-dir", str(places.data_dir), "--json"]) == 0
        (told,) = json.loads(capsys.readouterr().out)
        bad = next(at for at, payload in inputs if payload == BAD)
        assert (told["offset"], told["what"], "CANNOT_DECODE_URL" in told["reason"]) == (
            int(bad[2:]),
            "failed",
            True,
        )


def test_a_rule_that_java_does_not_end_is_paused_and_java_ends(
    spark: SparkSession, places: Places, log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but its end stops what Java does; the driver is started again with it."""

    def stuck(*_: object) -> Iterator[MadeRows]:
        raise RuleStuck("it takes longer than 60 s, and Spark cannot end it")

    ended: list[SparkSession] = []
    monkeypatch.setattr(Evaluation, "found", stuck)
    monkeypatch.setattr(RuleDoor, "_ask", lambda *_: RuleTaken(next={0: 0}))
    monkeypatch.setattr(live, "end_java", ended.append)
    with ruling(spark, places, {"hot": RULES["hot"]}) as rules:
        wait_for_state(rules, "paused", "rule:hot")
    assert len(ended) == 1
    assert pause_reason(places.data_dir, "rule:hot") == "it takes longer than 60 s, and Spark cannot end it"
