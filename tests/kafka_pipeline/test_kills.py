"""kill -9 of the broker, of Kafka and of Spark's driver or its Java machine, at random moments under load. Applications
that are there, that come and go, and that are away get all that was acknowledged, QoS 2 once, in the order of its
topic."""

from __future__ import annotations

import asyncio
import re
import shutil
from random import Random

import pytest
from tests.faults.fleet import V5, V311, Fleet
from tests.faults.spark_processes import driver_of, jvm_of, kill_all
from tests.kafka_pipeline.kafka_pipeline_broker import KafkaPipelineBroker
from tests.support.mqtt_client import MqttClient, run
from tests.support.seeds import ROUNDS
from tests.support.waiting import wait_for

from embermq.formats.kafka_record import read_source
from embermq.mqtt.wire.packets import Subscription
from embermq.mqtt.wire.properties import Properties

MESSAGES = 400 if ROUNDS > 1 else 200
"""Of each publisher before each kill."""
FIRST_S = 0.7
"""So long at most Spark has been at work when the first is killed."""
NEXT_S = 5.0
"""So long at most until the next one: what was killed before may be back by then, or on its way."""
KAFKA_AWAY_S = 3.0
SEEN_S = 60.0
WAITING = re.compile(r"the pipeline is down: application logs wait for [\d,]+ records?")
SPARK_S = 240.0
"""From nothing to the last message; a busy machine takes ten times the usual twenty seconds."""


async def kill_broker(broker: KafkaPipelineBroker, random: Random) -> None:
    """Spark ends with it; the next driver may come while the one before has not gone yet."""
    broker.kill()
    await asyncio.to_thread(broker.start)


async def kill_kafka(broker: KafkaPipelineBroker, random: Random) -> None:
    broker.kafka.kill()
    await asyncio.sleep(random.uniform(0, KAFKA_AWAY_S))
    await asyncio.to_thread(broker.kafka.start)


async def kill_spark(broker: KafkaPipelineBroker, random: Random) -> None:
    """It may be on its way just now. In some cases its checkpoints go as well."""
    kill_all(random.choice([driver_of, jvm_of])(broker))
    if random.random() < 0.5:
        shutil.rmtree(broker.data_dir / "pipeline" / "checkpoints", ignore_errors=True)


async def is_down(broker: KafkaPipelineBroker) -> None:
    """While there is no driver, status says so, and that applications wait."""

    def is_told() -> bool:
        status = broker.status()
        told = any(WAITING.fullmatch(text) for text in status["warnings"])
        return status["state"] == "down" and status["waiting"] > 0 and told

    await wait_for(is_told, SEEN_S, "status says that the pipeline is down, and that records wait")


def first_offsets(broker: KafkaPipelineBroker) -> int:
    """Of the message log, all partitions together."""
    return sum(first for first, _ in broker.bounds(f"{broker.prefix}.msg.all").values())


async def subscribes_and_goes(broker: KafkaPipelineBroker, client_id: str, topic_filter: str) -> None:
    """Its log keeps all that is for it."""
    client = MqttClient(client_id)
    kept = Properties(session_expiry_interval=86_400)
    await client.connect(broker.port, clean_start=False, properties=kept)
    await client.subscribe(Subscription(topic_filter, 2))
    client.abort()


def check_first_copies(broker: KafkaPipelineBroker, client_id: str, *, least: int) -> None:
    """However often the pipeline has begun anew: of each topic they stand in the order of the message log."""
    last: dict[bytes, int] = {}
    seen: set[int] = set()
    for copy in broker.records(broker.log_of(client_id)):
        topic, source = copy.key(), read_source(copy.headers())  # type: ignore[arg-type]
        assert isinstance(topic, bytes)
        if source not in seen:
            seen.add(source)
            assert last.get(topic, -1) < source, f"{topic!r}: {source} stands behind {last[topic]}"
            last[topic] = source
    assert len(seen) >= least


KILLS = [kill_spark, kill_kafka, kill_broker]


@pytest.mark.promise("application-3", "application-5", "application-8")
@pytest.mark.promise("pipeline-2", "pipeline-3", "pipeline-5", "pipeline-14")
@pytest.mark.long_rounds
def test_applications_get_all_that_was_acknowledged_once(
    seed: int, kafka_pipeline_broker: KafkaPipelineBroker
) -> None:
    """Each of the three is killed once a round, and each is the first in its turn; in `make test` the first alone."""
    broker, random = kafka_pipeline_broker, Random(seed)
    first = KILLS[(seed - 1) % len(KILLS)]
    began_at = first_offsets(broker)
    others = random.sample([kill for kill in KILLS if kill is not first], 2)
    kills = [first, *(others if ROUNDS > 1 else ())]

    async def scenario() -> None:
        fleet = Fleet(broker.port, random, topics=10, root=f"kills-{seed}")
        steady = fleet.subscriber(f"app-steady-{seed}", V311)
        fleet.subscriber(f"appRestless{seed}", V5, restless_s=1.5, receive_maximum=50)
        away = fleet.subscriber(f"appAway{seed}", V5)
        await fleet.start_subscribers()
        await subscribes_and_goes(broker, f"appUnread{seed}", f"kills-{seed}/#")
        await away.stop()
        fleet.start_publishers()
        fleet.allow(MESSAGES)
        await wait_for(lambda: steady.seen, SPARK_S, "Spark delivers")
        for number, kill in enumerate(kills):
            fleet.allow(MESSAGES)
            await asyncio.sleep(random.uniform(0, NEXT_S if number else FIRST_S))
            await kill(broker, random)
            if kill is first is kill_spark:
                await is_down(broker)
            fleet.check()
        away.come_back()
        await wait_for(lambda: not any(each.allowance for each in fleet.publishers), 60, "all is taken")
        await fleet.drain(SPARK_S)
        await fleet.stop()
        assert fleet.acknowledged() == len(fleet.publishers) * MESSAGES * (1 + len(kills))
        fleet.judge()
        await asyncio.to_thread(check_first_copies, broker, f"appUnread{seed}", least=fleet.acknowledged())
        await wait_for(lambda: first_offsets(broker) > began_at, SPARK_S, "what all have read is trimmed")

    run(scenario(), 680)
    status = broker.status()
    assert {pin["name"] for pin in status["log"]["pins"]} == {"dispatcher", "dispatch", "archive"}
    assert not [query for query in status["queries"] if query["totals"].get("missing")], status
