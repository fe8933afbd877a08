"""kill -9 of the broker, of the Spark driver and of its JVM: an APPLICATION client misses and doubles nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import pytest
from tests.faults.fleet import V5, V311, Fleet
from tests.faults.spark_processes import driver_of, jvm_of, kill_all
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.seeds import ROUNDS
from tests.support.waiting import wait_for

SETTINGS = {
    "clients.application_ids": "application-*",
    "pipeline.queries": "dispatch",
    "device.queue_limit": 60_000,
}
MESSAGES = 700 if ROUNDS > 1 else 300
SPARK_S = 240.0
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
    await wait_for(lambda: which(broker), SPARK_S, "Spark has come up")
    killed = which(broker)
    kill_all(killed)
    await wait_for(lambda: not set(killed) & set(broker.descendants()), 20, "it is gone")


def have_more(fleet: Fleet, before: list[int]) -> bool:
    """Every subscriber got something since."""
    return all(
        len(subscriber.seen) > count for subscriber, count in zip(fleet.subscribers, before, strict=True)
    )


@pytest.fixture(scope="module")
def running_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for all rounds: Spark's start takes longer than most of what they do."""
    folder = tmp_path_factory.mktemp("application-kill")
    with BrokerProcess(folder, pipeline=True, settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def broker(running_broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """It runs; a test may leave it killed."""
    if not running_broker.is_running:
        running_broker.start()
    failed = request.session.testsfailed
    yield running_broker
    if request.session.testsfailed > failed:
        sys.stderr.write(f"--- output of the broker\n{running_broker.output()}\n---\n")


@pytest.mark.promise("application-3", "application-5", "application-8", "application-14")
@pytest.mark.promise("pipeline-2", "pipeline-3", "pipeline-5", "pipeline-14")
@pytest.mark.long_rounds
def test_application_clients_get_all_that_was_acknowledged(seed: int, broker: BrokerProcess) -> None:
    """On the embedded log. In `make test` the broker or the driver dies under load, in `make faults` also both:
    applications get all in order, and of QoS 2 once."""
    random = Random(seed)

    async def scenario() -> None:
        fleet = Fleet(broker.port, random, root=f"load-{seed}")
        fleet.subscriber(f"application-3.1.1-{seed}", V311)
        fleet.subscriber(f"application-5-{seed}", V5, restless_s=1.5, receive_maximum=50)
        fleet.subscriber(f"device-{seed}", V5)
        await fleet.start_subscribers()
        fleet.start_publishers()
        kill_spark = random.choice([kill_driver, kill_jvm])
        kills = ([kill_broker, kill_spark], [kill_spark, kill_broker], [kill_broker], [kill_spark])
        for kill in kills[seed % 4 if ROUNDS > 1 else 2 + seed % 2]:
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
        await wait_for(lambda: not any(each.allowance for each in fleet.publishers), 60)
        await fleet.drain(SPARK_S)
        await fleet.stop()
        fleet.judge()

    run(scenario(), 680)
