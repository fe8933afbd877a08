"""Rules on a log in Kafka, as the broker runs them: kill -9 of broker, Kafka and Spark at random moments under load.
Every message of the log has one of the rule's, in order, and no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.kafka_pipeline.kafka_pipeline_broker import RUNS_S, KafkaPipelineBroker
from tests.kafka_pipeline.test_kills import KILLS
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_until

from embermq.formats.kafka_record import decode_kafka_record

RULES = {
    "rules.all.sql": "SELECT concat('all/', topic) AS topic, payload FROM messages",
    "rules.all.qos": 2,
    "rules.even.sql": "SELECT payload FROM messages WHERE int(payload) % 2 = 0",
    "rules.even.to": "queue",
    "rules.even.queue": "even",
    "rules.counts.sql": "SELECT 'counts' AS topic, string(count(*)) AS payload FROM messages",
    "rules.counts.every": "10s",
    "pipeline.queries": json.dumps(["dispatch"]),
    "log.retention_hours": 24,  # all of it is read in the end
}
START_S = 2 * RUNS_S
"""Spark has dispatch to start before."""
PAUSE_S = 0.01
NEXT_S = 8.0


@pytest.fixture
def broker(kafka: KafkaServer, tmp_path: Path) -> Iterator[KafkaPipelineBroker]:
    with KafkaPipelineBroker(kafka, tmp_path / "rules", RULES) as found:
        yield found


async def publishes(broker: KafkaPipelineBroker, stopping: asyncio.Event) -> None:
    """One number after the other; one whose answer was lost once more."""
    number, client = 0, None
    while not stopping.is_set():
        try:
            if client is None:
                client = MqttClient("publisher")
                await client.connect(broker.port)
            await asyncio.wait_for(client.publish(f"s/{number % 5}", b"%d" % number, qos=1), 5)
            number += 1
            await asyncio.sleep(PAUSE_S)
        except (OSError, TimeoutError, AssertionError):
            if client is not None:
                client.abort()
            client = None
            await asyncio.sleep(PAUSE_S)
    if client is not None:
        client.abort()


def judged(broker: KafkaPipelineBroker) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Of which messages those of each rule should come, and of which they come, in the order of the log; what the rule
    over windows says."""
    wanted: dict[str, list[str]] = {"all": [], "even": []}
    found: dict[str, list[str]] = {"all": [], "even": [], "counts": []}
    for one in broker.records(f"{broker.prefix}.msg.all"):
        message = decode_kafka_record(one.key(), one.value(), one.headers()).record.message  # type: ignore[arg-type]
        said = dict(message.properties.user_properties) if message.properties is not None else {}
        if "rule" in said:
            is_window = said["rule"] == "counts"
            found[said["rule"]].append(message.payload.decode() if is_window else said["rule-of"])
            continue
        at = f"{one.partition()}:{one.offset()}"
        wanted["all"].append(at)
        if not int(message.payload) % 2:
            wanted["even"].append(at)
    return wanted, found


@pytest.mark.in_faults
@pytest.mark.long_rounds
@pytest.mark.promise("pipeline-2", "pipeline-3", "pipeline-14")
@pytest.mark.timeout(1_500)
def test_rules_publish_once_whoever_is_killed(seed: int, broker: KafkaPipelineBroker) -> None:
    random = Random(seed)

    def runs() -> bool:
        return all(
            broker.query(f"rule:{name}").get("state") == "running" for name in ("all", "even", "counts")
        )

    async def scenario() -> None:
        stopping = asyncio.Event()
        publishing = asyncio.create_task(publishes(broker, stopping))
        for kill in random.sample(KILLS, len(KILLS)):
            await asyncio.sleep(random.uniform(0, NEXT_S))
            await kill(broker, random)
        await asyncio.sleep(1)
        stopping.set()
        await publishing

    wait_until(runs, START_S, "the rules run", poll_s=0.5)
    run(scenario(), 400)
    broker.heal()

    def is_done() -> bool:
        wanted, found = judged(broker)
        is_counted = sum(map(int, found["counts"])) >= len(wanted["all"])
        return is_counted and all(len(found[rule]) >= len(wanted[rule]) for rule in wanted)

    wait_until(is_done, START_S, "every message has its own", poll_s=1)
    wait_until(runs, RUNS_S, "the rules run still", poll_s=0.1)
    wanted, found = judged(broker)
    assert sum(map(int, found.pop("counts"))) == len(wanted["all"]), "each in one window"
    assert found == wanted and len(wanted["all"]) > 50
