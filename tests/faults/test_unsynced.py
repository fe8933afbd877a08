"""A power failure: what was not synced at the kill is gone. An acknowledgement must have come after the sync."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import pytest
from tests.faults.data_files import log_extent
from tests.faults.fleet import V5, V311, Fleet
from tests.faults.test_broker_kill import KILLS, MESSAGES, QUEUE, kill_and_restart
from tests.faults.unsynced import ForgetfulDisk
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for


@pytest.mark.promise("device-1", "device-9", "repositories-1")
def test_what_was_acknowledged_survives_a_power_failure(seed: int, tmp_path: Path) -> None:
    """Of what was written only what was synced stays: all that was acknowledged is there."""
    random = Random(seed)
    data_dir = tmp_path / "data"
    disk = ForgetfulDisk(data_dir, tmp_path)
    with BrokerProcess(data_dir, settings=QUEUE, env=disk.env) as broker:

        async def scenario() -> None:
            fleet = Fleet(broker.port, random)
            fleet.subscriber("steady-3.1.1", V311)
            fleet.subscriber("restless-5", V5, restless_s=0.3)
            await fleet.start_subscribers()
            fleet.start_publishers()
            for _ in range(KILLS):
                fleet.allow(MESSAGES)
                torn = random.random() < 0.7
                await kill_and_restart(broker, random, partial(disk.lose, random if torn else None))
                fleet.check()
            await wait_for(lambda: not any(each.allowance for each in fleet.publishers), 30)
            await fleet.drain()
            await fleet.stop()
            fleet.judge()

        run(scenario())


async def publish_and_count(broker: BrokerProcess, count: int, payload_bytes: int) -> None:
    """Nobody is subscribed: a delivery's state would be synced behind its message, and the message with it."""
    client = MqttClient("counted")
    await client.connect(broker.port, expiry_s=3_600)
    for number in range(count):
        payload = (b"%d" % number).ljust(payload_bytes)
        assert await client.publish("counted/topic", payload, qos=1) < 0x80
    assert log_extent(broker.data_dir)[1] == count


@pytest.mark.promise("device-1")
@pytest.mark.parametrize(
    ("durability", "payload_bytes", "lost"),
    [("fsync", 1, 0), ("fsync", 300_000, 0), ("os", 1, 50), ("memory", 1, 50)],
)
def test_the_disk_forgets_exactly_what_the_durability_level_leaves_to_it(
    durability: str, payload_bytes: int, lost: int, tmp_path: Path
) -> None:
    """The level `os` is what shows that this family of tests can fail."""
    data_dir = tmp_path / "data"
    disk = ForgetfulDisk(data_dir, tmp_path)
    with BrokerProcess(data_dir, settings={"log.durability": durability}, env=disk.env) as broker:
        if durability == "memory":
            run(publish_in_memory(broker, 50))
        else:
            run(publish_and_count(broker, 50, payload_bytes))
        broker.kill()
        disk.lose()
        broker.start()
        assert log_extent(data_dir) == (0, 50 - lost)


async def publish_in_memory(broker: BrokerProcess, count: int) -> None:
    """The level `memory` writes a little later."""
    client = MqttClient("counted")
    await client.connect(broker.port, expiry_s=3_600)
    for number in range(count):
        await client.publish("counted/topic", b"%d" % number, qos=1)
    await wait_for(lambda: log_extent(broker.data_dir)[1] == count)
