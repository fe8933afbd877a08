"""Small limits, large messages, clients that sleep, half-close, are taken over or held back: nothing acknowledged is
lost, QoS 2 arrives once, topics keep their order, answers come in order, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.faults.fleet import V5, V311, Fleet
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import ConnectionEnded, MqttClient, run
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Publish, Subscription

MESSAGES = 400
"""Of each publisher."""
PROGRESS_S = 60.0
NOISE_BYTES = 40_000


def strained(random: Random) -> dict[str, object]:
    """Settings as narrow as they may be, each chosen anew."""
    return {
        "device.queue_limit": 60_000,
        "device.queue_bytes_max": 1024 * 1024 * 1024,
        "mqtt.queued_bytes_max": random.choice((0, 20_000, 16_000_000)),
        "mqtt.inflight_max": random.choice((1, 2, 20, 1_024)),
        "mqtt.receive_maximum": random.choice((100, 1_024)),
        "mqtt.slow_reader_s": random.choice((0.1, 60)),
        "mqtt.publish_rate_max": random.choice((0, 0, 400)),
        "log.durability": random.choice(("fsync", "os")),
    }


def narrowed(random: Random) -> dict[str, object]:
    """What is no setting, likewise."""
    waiting = random.choice((0, 3, 1_000))
    return {
        "embermq.edge.connection.WRITE_BUFFER_BYTES_MAX": 65_536,
        "embermq.delivery.direct.path.QUEUED_MESSAGES_MAX": waiting,
        "embermq.delivery.device.path.QUEUED_MESSAGES_MAX": waiting,
    }


async def make_noise(port: int, random: Random, enough: asyncio.Event) -> None:
    """QoS 0 and QoS 2 in large pieces, from clients that come and go, for subscribers that keep nothing."""
    while not enough.is_set():
        client = MqttClient(f"noise-{random.random()}", version=random.choice((V311, V5)), keeps=False)
        with suppress(ConnectionEnded, OSError, TimeoutError):
            await client.connect(port)
            await client.subscribe(Subscription("#", random.randrange(3)))
            for number in range(1, random.randrange(2, 30)):
                qos = random.choice((0, 2))
                size = random.randrange(NOISE_BYTES)
                client.send(Publish(f"noise/{number}", b"x" * size, qos, number if qos else 0))
            if random.random() < 0.5:
                await asyncio.wait_for(client.ping(), PROGRESS_S)
        random.choice((client.abort, client.close, client.half_close))()
        await asyncio.sleep(random.uniform(0, 0.05))
        client.abort()


@pytest.mark.parametrize("kills", [pytest.param(0, marks=pytest.mark.in_faults), 2])
@pytest.mark.long_rounds
def test_everything_comes_through(seed: int, kills: int, tmp_path: Path) -> None:
    random = Random(seed)
    with BrokerProcess(tmp_path, settings=strained(random), constants=narrowed(random)) as broker:

        async def scenario() -> None:
            fleet = Fleet(broker.port, random, topics=5)
            for publisher in fleet.publishers:
                publisher.large_every = random.choice((0, 5))
                publisher.lapses_s = random.choice((0.0, 0.5))
            fleet.subscriber("steady-3.1.1", V311)
            fleet.subscriber("sleepy-3.1.1", V311).sleepy_s = 0.3
            fleet.subscriber("sleepy-5", V5, receive_maximum=random.choice((1, 30))).sleepy_s = 0.3
            fleet.subscriber("restless-5", V5, restless_s=0.3).sleepy_s = 0.05
            await fleet.start_subscribers()
            fleet.start_publishers()
            enough = asyncio.Event()
            noise = [asyncio.create_task(make_noise(broker.port, random, enough)) for _ in range(3)]
            for _ in range(kills):
                fleet.allow(MESSAGES // kills)
                await asyncio.sleep(random.uniform(0.1, 1.0))
                broker.kill()
                await asyncio.to_thread(broker.start)
                fleet.check()
            if not kills:
                fleet.allow(MESSAGES)
            await wait_for(
                lambda: not any(each.allowance for each in fleet.publishers), PROGRESS_S, "messages are taken"
            )
            enough.set()
            await asyncio.wait_for(asyncio.gather(*noise), PROGRESS_S)
            await fleet.drain(PROGRESS_S)
            await fleet.stop()
            fleet.judge()

        run(scenario())
    assert "Traceback" not in broker.output()
