"""kill -9 of the broker under full load: nothing acknowledged is lost, QoS 2 arrives once, topics keep their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.faults.fleet import V5, V311, Fleet
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.waiting import wait_for

KILLS = 3
MESSAGES = 2_500
"""Of each publisher between two kills: four times that, and three kills, must fit the offline queue."""
QUEUE = {"device.queue_limit": 60_000}


def nothing() -> None:
    """What happens to the disk when only the process dies."""


async def kill_and_restart(
    broker: BrokerProcess, random: Random, after_kill: Callable[[], object] = nothing
) -> None:
    """At a random moment of the load, and in some cases again while the broker is still starting."""
    await asyncio.sleep(random.uniform(0.02, 0.6))
    broker.kill()
    after_kill()
    while random.random() < 0.3:
        broker.launch()
        await asyncio.sleep(random.uniform(0.1, 0.7))
        broker.kill()
        after_kill()
    await asyncio.to_thread(broker.start)


@pytest.mark.promise("device-1", "device-9", "device-11", "repositories-1")
@pytest.mark.timeout(240)
def test_device_subscribers_get_all_that_was_acknowledged(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    with BrokerProcess(tmp_path, settings=QUEUE) as broker:

        async def scenario() -> None:
            fleet = Fleet(broker.port, random)
            fleet.subscriber("steady-3.1.1", V311)
            fleet.subscriber("steady-5", V5)
            fleet.subscriber("restless-3.1.1", V311, restless_s=0.4)
            fleet.subscriber("restless-5", V5, restless_s=0.2)
            fleet.subscriber("narrow-5", V5, restless_s=0.8, receive_maximum=20, topic_filter="load/V5/#")
            await fleet.start_subscribers()
            fleet.start_publishers()
            for _ in range(KILLS):
                fleet.allow(MESSAGES)
                await kill_and_restart(broker, random)
                fleet.check()
            await wait_for(lambda: not any(each.allowance for each in fleet.publishers), 30)
            await fleet.drain()
            await fleet.stop()
            assert fleet.acknowledged() == 4 * KILLS * MESSAGES
            fleet.judge()

        run(scenario())
