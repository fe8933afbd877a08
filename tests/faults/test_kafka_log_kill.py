"""The message log in Kafka, under load: kill -9 of the broker, of Kafka, of both, with session data beside the log and
in Redis. What was acknowledged arrives at everybody who had subscribed, QoS 2 once, in the order of its topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import httpx
import pytest
from tests.faults.fleet import V5, V311, Fleet
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_server import KafkaServer
from tests.support.metrics import metric
from tests.support.mqtt_client import MqttClient, run
from tests.support.seeds import ROUNDS
from tests.support.waiting import wait_for, wait_until

from embermq.mqtt.wire.packets import Publish, Subscription

TIMES = 2
"""How often something is killed in a round."""
MESSAGES = 500 if ROUNDS > 1 else 200
"""Of each publisher between two of them."""
Trouble = Callable[[], Awaitable[None]]


def broker_on(servers: dict[str, object], folder: Path) -> BrokerProcess:
    return BrokerProcess(folder / "data", settings={"device.queue_limit": 60_000, **servers})


async def under_load(broker: BrokerProcess, random: Random, trouble: Trouble) -> None:
    """Messages all the time, `trouble` at random moments; then everybody gets what is owed, and is judged."""
    fleet = Fleet(broker.port, random, topics=10, window=50)
    fleet.subscriber("steady-3.1.1", V311)
    fleet.subscriber("restless-3.1.1", V311, restless_s=0.5)
    fleet.subscriber("restless-5", V5, restless_s=0.3)
    fleet.subscriber("narrow-5", V5, restless_s=0.8, receive_maximum=20, topic_filter="load/V5/#")
    await fleet.start_subscribers()
    fleet.start_publishers()
    for _ in range(TIMES):
        fleet.allow(MESSAGES)
        await asyncio.sleep(random.uniform(0.02, 0.6))
        await trouble()
        fleet.check()
    await wait_for(lambda: not any(each.allowance for each in fleet.publishers), 60, "everything is taken")
    await fleet.drain()
    await fleet.stop()
    assert fleet.acknowledged() == len(fleet.publishers) * TIMES * MESSAGES
    fleet.judge()


@pytest.mark.in_faults
@pytest.mark.promise("device-1", "device-9")
def test_kafka_is_killed(seed: int, kafka: KafkaServer, servers: dict[str, object], tmp_path: Path) -> None:
    random = Random(seed)
    with broker_on(servers, tmp_path) as broker:

        async def trouble() -> None:
            await asyncio.to_thread(kafka.kill)
            await asyncio.sleep(random.uniform(0.0, 1.0))
            await asyncio.to_thread(kafka.start)

        run(under_load(broker, random, trouble))
        assert metric(broker, "commits_failed_total") == 0


@pytest.mark.promise("device-1", "device-9")
@pytest.mark.long_rounds
def test_broker_and_kafka_are_killed(
    seed: int, kafka: KafkaServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """Both die under load, in either order, the broker at times twice: nothing acknowledged is lost."""
    random = Random(seed)
    with broker_on(servers, tmp_path) as broker:

        async def trouble() -> None:
            first, second = random.sample([broker.kill, kafka.kill], 2)
            first()
            await asyncio.sleep(random.uniform(0.0, 0.2))
            await asyncio.to_thread(second)
            if random.random() < 0.5:
                broker.launch()
                await asyncio.sleep(random.uniform(0.0, 0.6))
                broker.kill()
            await asyncio.to_thread(kafka.start)
            await asyncio.to_thread(broker.start)

        run(under_load(broker, random, trouble))


def test_while_kafka_hangs_acknowledgements_wait_and_that_is_shown(
    kafka: KafkaServer, servers: dict[str, object], tmp_path: Path
) -> None:
    with broker_on(servers, tmp_path) as broker:

        async def scenario() -> None:
            subscriber = MqttClient("subscriber")
            await subscriber.connect(broker.port, clean_start=False, expiry_s=600)
            await subscriber.subscribe(Subscription("a/#", 2))
            publisher = MqttClient("publisher")
            await publisher.connect(broker.port)
            kafka.pause()  # the driver gets no error then: it has no reason to give
            for number in range(1, 11):
                publisher.send(Publish(f"a/{number % 3}", b"%d" % number, 1 + number % 3 % 2, number))
            await wait_for(lambda: "acknowledgements wait" in broker.output(), 30, "it is said")
            assert subscriber.messages == []
            url = f"http://127.0.0.1:{broker.http_port}/ready"
            async with httpx.AsyncClient() as asking:
                answer = await asking.get(url, timeout=30)
            assert (answer.status_code, kafka.bootstrap in answer.text) == (503, True)
            kafka.resume()
            await wait_for(lambda: len(subscriber.messages) == 10, 30, "all arrive")
            for topic in range(3):
                own = [int(each.payload) for each in subscriber.messages if each.topic == f"a/{topic}"]
                assert own == sorted(own)

        run(scenario())
        wait_until(lambda: "the message log works again" in broker.output(), 30)
        assert kafka.bootstrap in broker.output()


def test_a_topic_that_is_deleted_ends_the_broker_and_is_told_at_the_next_start(
    kafka: KafkaServer, servers: dict[str, object], tmp_path: Path
) -> None:
    with broker_on(servers, tmp_path) as broker:
        topic = f"{broker.settings['kafka.prefix']}.msg.all"

        async def scenario() -> None:
            publisher = MqttClient("publisher")
            await publisher.connect(broker.port)
            await publisher.publish("a/b", b"kept", qos=1)
            await asyncio.to_thread(kafka.delete_topic, topic)
            publisher.send(Publish("a/b", b"never", 1, 77))
            await publisher.ended

        run(scenario())
        wait_until(lambda: not broker.is_running, 30, "the broker ends")
        assert "the message log has failed, the broker ends" in broker.output() and topic in broker.output()
        broker.launch()
        wait_until(lambda: not broker.is_running, 30, "the broker refuses to start")
        assert f"topic {topic} is gone" in broker.output()


def test_a_data_directory_stays_with_its_profile(servers: dict[str, object], tmp_path: Path) -> None:
    async def publish(port: int) -> None:
        publisher = MqttClient("publisher")
        await publisher.connect(port)
        await publisher.publish("a/b", b"kept", qos=1)
        publisher.close()

    with broker_on(servers, tmp_path) as broker:
        run(publish(broker.port))
        broker.stop()
        broker.settings |= {"stores.log": "sqlite", "stores.session": "sqlite"}
        broker.launch()
        wait_until(lambda: not broker.is_running, 30, "the broker refuses to start")
        assert f"is not in it but in {servers['stores.log']}" in broker.output()
        broker.settings |= servers
        broker.start()
    with BrokerProcess(tmp_path / "other") as broker:
        run(publish(broker.port))
        broker.stop()
        broker.settings |= servers
        broker.launch()
        wait_until(lambda: not broker.is_running, 30, "the broker refuses to start")
        assert "is in its folder log and is not moved to kafka://" in broker.output()
