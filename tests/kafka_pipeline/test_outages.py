"""Kafka is away while the pipeline works: all of it for half a minute, or one server of three. Applications get all
that was acknowledged, QoS 2 once, in the order of its topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
from tests.faults.fleet import V5, V311, Fleet
from tests.faults.spark_processes import driver_of
from tests.faults.traffic import Subscriber
from tests.kafka_pipeline.kafka_pipeline_broker import KafkaPipelineBroker, PipelineBroker
from tests.support.kafka_server import KafkaCluster
from tests.support.mqtt_client import run
from tests.support.waiting import wait_for

pytestmark = pytest.mark.in_faults

MESSAGES = 1_000
"""Of each publisher before an outage, and during one."""
AWAY_S = 30.0
SPARK_S = 240.0


def under_load(port: int, seed: int, root: str, outages: list[Callable[[], Awaitable[None]]]) -> None:
    """Messages before, during and after each outage."""
    random = Random(seed)

    async def scenario() -> None:
        fleet = Fleet(port, random, topics=10, root=root)
        steady = fleet.subscriber(f"app-steady-{root}", V311)
        fleet.subscriber(f"app-restless-{root}", V5, restless_s=2.0, receive_maximum=50)
        await fleet.start_subscribers()
        fleet.start_publishers()
        for outage in outages:
            await delivers(fleet, steady)
            fleet.allow(MESSAGES)
            await asyncio.sleep(random.uniform(0, 0.7))
            await outage()
            fleet.check()
        await wait_for(lambda: not any(each.allowance for each in fleet.publishers), 60, "all is taken")
        await fleet.drain(SPARK_S)
        await fleet.stop()
        assert fleet.acknowledged() == len(fleet.publishers) * 2 * MESSAGES * len(outages)
        fleet.judge()

    run(scenario(), 680)


async def delivers(fleet: Fleet, subscriber: Subscriber) -> None:
    """Messages come by way of Spark now."""
    before = len(subscriber.seen)
    fleet.allow(MESSAGES)
    await wait_for(lambda: len(subscriber.seen) > before, SPARK_S, "Spark delivers")


@pytest.mark.promise("application-3", "pipeline-2", "pipeline-5")
def test_kafka_is_away_for_half_a_minute(seed: int, kafka_pipeline_broker: KafkaPipelineBroker) -> None:
    broker = kafka_pipeline_broker
    driver = driver_of(broker)

    async def outage() -> None:
        broker.kafka.kill()
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(broker.kafka.start)

    under_load(broker.port, seed, f"half-a-minute-{seed}", [outage])
    assert driver_of(broker) == driver  # a query may have died, Spark has not


@pytest.mark.promise("application-3", "pipeline-2", "pipeline-3")
def test_one_server_of_three_is_killed(seed: int, kafka_cluster: KafkaCluster, tmp_path: Path) -> None:
    """Each in its turn, while the one before has just come back."""
    with PipelineBroker(kafka_cluster, tmp_path, {"kafka.replication_factor": 3}) as broker:
        broker.wait_for_pipeline()
        log = f"{broker.prefix}.msg.all"

        async def outage() -> None:
            led = await asyncio.to_thread(kafka_cluster.leader, log)
            led.kill()
            await asyncio.sleep(10)
            await asyncio.to_thread(led.start)
            await wait_for(lambda: kafka_cluster.copies_in_sync(log) == 3, 60, "it has caught up")

        under_load(broker.port, seed, "one-of-three", [outage] * 3)
