"""kill -9 of the broker, of the Spark driver and of its JVM: an APPLICATION client misses and doubles nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from tests.faults.fleet import V5, V311, Fleet
from tests.faults.spark_processes import driver_of, jvm_of, kill_all
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.waiting import wait_for

SETTINGS = {
    "clients.application_ids": "application-*",
    "pipeline.queries": "dispatch",
    "pipeline.backoff_first_ms": 10,
    "device.queue_limit": 60_000,
}
MESSAGES = 1_500
SPARK_S = 90.0
"""From nothing to the first message; a busy machine takes several times the usual ten seconds."""


async def kill_broker(broker: BrokerProcess) -> None:
    """Spark goes with it, and comes again with the next one."""
    broker.kill()
    await wait_for(lambda: not broker.descendants(), 20, "Spark ends with its broker")
    await asyncio.to_thread(broker.start)


async def kill_driver(broker: BrokerProcess) -> None:
    await _kill(broker, driver_of)


async def kill_jvm(broker: BrokerProcess) -> None:
    await _kill(broker, jvm_of)


async def _kill(broker: BrokerProcess, which: Callable[[BrokerProcess], list[int]]) -> None:
    killed = which(broker)
    assert killed
    kill_all(killed)
    await wait_for(lambda: not set(killed) & set(broker.descendants()), 20, "it is gone")


def have_more(fleet: Fleet, before: list[int]) -> bool:
    """Every subscriber got something since."""
    return all(
        len(subscriber.seen) > count for subscriber, count in zip(fleet.subscribers, before, strict=True)
    )


@pytest.mark.promise("application-3", "application-5", "application-8", "application-14")
@pytest.mark.promise("pipeline-2", "pipeline-3", "pipeline-5", "pipeline-14")
@pytest.mark.timeout(400)
def test_application_clients_get_all_that_was_acknowledged(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    with BrokerProcess(tmp_path, pipeline=True, settings=SETTINGS) as broker:

        async def scenario() -> None:
            fleet = Fleet(broker.port, random)
            fleet.subscriber("application-3.1.1", V311)
            fleet.subscriber("application-5", V5, restless_s=1.5, receive_maximum=50)
            fleet.subscriber("device", V5)
            await fleet.start_subscribers()
            fleet.start_publishers()
            kill_spark = random.choice([kill_driver, kill_jvm])
            kills = ([kill_broker, kill_spark], [kill_spark, kill_broker], [kill_broker], [kill_spark])
            for kill in kills[seed % 4]:
                before = [len(subscriber.seen) for subscriber in fleet.subscribers]
                fleet.allow(MESSAGES)
                if kill is kill_broker and seed % 2:
                    await asyncio.sleep(random.uniform(0, 4))  # while Spark comes again
                else:
                    await wait_for(partial(have_more, fleet, before), SPARK_S, "Spark has begun to deliver")
                    await asyncio.sleep(random.uniform(0, 0.7))
                await kill(broker)
                fleet.check()
            fleet.allow(MESSAGES)
            await wait_for(lambda: not any(each.allowance for each in fleet.publishers), 30)
            await fleet.drain(SPARK_S)
            await fleet.stop()
            fleet.judge()

        run(scenario(), 380)
