"""kill -9 of the broker and of Kafka under load, while the pipeline repeats itself: an APPLICATION client whose log is
in Kafka misses and doubles nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from tests.faults.fleet import V5, V311, Fleet
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_dispatcher import KafkaDispatcher
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import run
from tests.support.seeds import ROUNDS
from tests.support.waiting import wait_for

MESSAGES = 400 if ROUNDS > 1 else 200
"""Of each publisher between two kills."""


@pytest.mark.promise("application-3", "application-5", "application-8")
@pytest.mark.long_rounds
def test_application_clients_get_all_once(
    seed: int, kafka: KafkaServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """APPLICATION clients over kills of broker and Kafka, without Spark: what the broker itself does for them."""
    random = Random(seed)
    settings = servers | {"clients.application_ids": "application-*", "device.queue_limit": 60_000}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:

        async def trouble(is_kafka: bool) -> None:
            (kafka if is_kafka else broker).kill()
            await asyncio.to_thread((kafka if is_kafka else broker).start)

        async def scenario() -> None:
            fleet = Fleet(broker.port, random)
            fleet.subscriber("application-3.1.1", V311)
            fleet.subscriber("application-5", V5, restless_s=0.7, receive_maximum=50)
            await fleet.start_subscribers()
            fleet.start_publishers()
            for is_kafka in random.sample(
                [False, True, False][: 3 if ROUNDS > 1 else 2], k=3 if ROUNDS > 1 else 2
            ):
                fleet.allow(MESSAGES)
                await asyncio.sleep(random.uniform(0.1, 1.0))
                await trouble(is_kafka)
                fleet.check()
            await wait_for(lambda: not any(each.allowance for each in fleet.publishers), 60)
            await fleet.drain(60)
            await fleet.stop()
            fleet.judge()

        with KafkaDispatcher(kafka, str(settings["kafka.prefix"]), random=Random(seed)) as pipeline:
            run(scenario())
        assert pipeline.repeated > 0
