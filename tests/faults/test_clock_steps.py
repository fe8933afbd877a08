"""The machine's clock is set under a running broker, far forward and back, and one that was never set is set later."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.faults.stepped import SteppedClock
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.metrics import metric
from tests.support.mqtt_client import MqttClient, run
from tests.support.queue_worker import Worker, worker
from tests.support.waiting import wait_for, wait_until

from embermq.mqtt.wire.packets import Subscription
from embermq.mqtt.wire.properties import Properties

HOUR_MS = 3_600_000
COUNT = 50
EXPIRES = Properties(message_expiry_interval=3_600)


def payloads(begin: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, begin + COUNT)]


async def publish(client: MqttClient, begin: int) -> None:
    for payload in payloads(begin):
        assert await client.publish("t", payload, qos=1, properties=EXPIRES) in (0, 0x10)


async def resumed(broker: BrokerProcess, *, wants: list[bytes]) -> None:
    """The kept session gets these, in this order."""
    client = MqttClient("kept")
    connack = await client.connect(broker.port, clean_start=False, expiry_s=86_400)
    assert connack.session_present
    await wait_for(lambda: len(client.messages) >= len(wants), 30, "the kept messages")
    assert [message.payload for message in client.messages] == wants
    left = client.messages[0].properties
    assert left is not None and 3_000 < (left.message_expiry_interval or 0) <= 3_600
    await client.ping()
    client.close()
    await client.ended


async def stepped(broker: BrokerProcess, clock: SteppedClock, by_ms: int, steps: int) -> None:
    clock.ahead_by(by_ms)
    await wait_for(lambda: metric(broker, "clock_steps") == steps, 30, f"{steps} steps are seen")


def clock_part(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/ready", timeout=60) as answer:
        found: str = json.load(answer)["parts"]["clock"]
    return found


async def one_that_waits(broker: BrokerProcess) -> None:
    """A kept session with a subscription, whose client leaves."""
    client = MqttClient("kept")
    await client.connect(broker.port, clean_start=False, expiry_s=86_400)
    await client.subscribe(Subscription("t", 1))
    client.close()
    await client.ended


async def is_delayed(consumer: Worker, payload: bytes) -> None:
    """A message of a queue comes after its delay, and so are other durations of queues over."""
    await consumer.enqueues("$queue/later", payload, delay="200ms")
    taken = await consumer.next()
    assert taken.payload == payload
    await consumer.acks(taken)


def test_nothing_is_discarded_or_stops_when_the_clock_is_set(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path)
    with BrokerProcess(tmp_path / "data", env=clock.env) as broker:

        async def forward_and_back() -> None:
            await one_that_waits(broker)
            consumer = await worker(broker, "w", acknowledges=False)
            await consumer.consumes("$queue/jobs")
            await consumer.consumes("$queue/later")
            await consumer.enqueues("$queue/jobs", b"held")
            held = await consumer.next()
            await publish(consumer, 0)
            await stepped(broker, clock, 9 * 24 * HOUR_MS, 1)
            assert "behind the wall clock" in clock_part(broker)
            await consumer.gets_nothing()
            await is_delayed(consumer, b"1")
            await consumer.acks(held)
            await resumed(broker, wants=payloads(0))
            await publish(consumer, 100)
            await stepped(broker, clock, -2 * HOUR_MS, 2)
            await is_delayed(consumer, b"2")
            await resumed(broker, wants=payloads(100))
            await stepped(broker, clock, 9 * 24 * HOUR_MS, 3)
            await publish(consumer, 200)
            consumer.close()
            await consumer.ended

        run(forward_and_back())
        # To the second, unless somebody corrects the real clock meanwhile.
        assert re.search(
            r"WARNING the clock was moved forward by (9 days, 0:00:0|8 days, 23:59:5)", broker.output()
        )
        assert re.search(r"WARNING the clock was moved back by 9 days, (2:00:0|1:59:5)", broker.output())
        broker.kill()
        broker.start()
        run(resumed(broker, wants=payloads(200)))


def test_a_clock_that_was_never_set(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path)
    clock.ahead_by(60_000 - time.time_ns() // 1_000_000)
    at = datetime.now(UTC).isoformat()
    with BrokerProcess(tmp_path / "data", env=clock.env) as broker:

        async def scenario() -> None:
            assert clock_part(broker) == "not set" and metric(broker, "clock_set") == 0
            await one_that_waits(broker)
            consumer = await worker(broker, "w")
            await consumer.consumes("$queue/later")
            await is_delayed(consumer, b"1")
            await publish(consumer, 0)
            given = Properties(user_properties=(("deliver-at", at),))
            assert await consumer.publish("$queue/later", b"x", qos=1, properties=given) == 0x83
            clock.ahead_by(0)
            await wait_for(lambda: metric(broker, "clock_set") == 1, 30, "the clock is set")
            await consumer.enqueues("$queue/later", b"2", deliver_at=at)
            assert (await consumer.next()).payload == b"2"
            await is_delayed(consumer, b"3")
            await resumed(broker, wants=payloads(0))
            consumer.close()
            await consumer.ended

        run(scenario())
        wait_until(lambda: "INFO the clock has been set" in broker.output())


@pytest.mark.promise("cluster-7")
def test_what_was_due_by_the_clock_of_one_node_is_due_then_at_the_next_one_whose_clock_is_behind(
    etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """By its own clock it would be due in an hour."""
    clock = SteppedClock(tmp_path)
    clock.ahead_by(HOUR_MS)
    settings = servers | {"cluster.etcd": f"{etcd.url}/cars"}
    ahead = BrokerProcess(tmp_path / "ahead", settings=settings | {"cluster.node": "ahead"}, env=clock.env)
    behind = BrokerProcess(tmp_path / "behind", settings=settings | {"cluster.node": "behind"})

    async def leaves_work() -> None:
        consumer = await worker(ahead, "w", acknowledges=False)
        await consumer.consumes("$queue/jobs", consumer_group="g")
        await consumer.enqueues("$queue/jobs", b"again")
        assert await consumer.says("nack", await consumer.next(), delay="10s") == (0, "")
        await consumer.enqueues("$queue/jobs", b"later", delay="10s")
        ahead.kill()

    async def works() -> None:
        consumer = await worker(behind, "w2", acknowledges=False)
        await consumer.consumes("$queue/jobs", consumer_group="g")
        assert {taken.payload for taken in await consumer.take_and_ack(2)} == {b"again", b"later"}
        consumer.close()

    try:
        ahead.start()
        run(leaves_work())
        behind.start()
        run(works())
        assert behind.stop() == 0
    finally:
        ahead.close()
        behind.close()
