"""Queues where the log is in Kafka and session data in Redis: what is acknowledged is there again after kill -9."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import run
from tests.support.queue_worker import worker

from embermq.mqtt.wire.packets import Subscription

TOPIC = "$queue/stores"
COUNT = 30
PAYLOADS = [b"%d" % number for number in range(COUNT)]


async def enqueue(broker: BrokerProcess) -> None:
    producer = await worker(broker, "producer")
    await producer.enqueues(TOPIC, *PAYLOADS, partition_key="k")
    await producer.enqueues(TOPIC, b"QoS 2", qos=2, partition_key="k")
    producer.close()


async def take(broker: BrokerProcess, payloads: list[bytes], held: list[str] | None = None) -> None:
    """Get these, in order, and acknowledge them; more may follow. The first of them are `held`, not charged."""
    taker = await worker(broker, "workers-1")
    await taker.consumes(TOPIC)
    for number, payload in enumerate(payloads):
        taken = await taker.next()
        assert taken.payload == payload
        if held is not None and number < len(held):
            assert (taken.id, taken.count) == (held[number], 1)
        await taker.acks(taken)
    taker.close()


async def reject_and_hold(broker: BrokerProcess, held: list[str]) -> None:
    """The next message becomes a dead letter; the broker dies while a consumer holds the one behind it."""
    taker = await worker(broker, "workers-1")
    await taker.consumes(TOPIC)
    assert await taker.says("reject", await taker.next(), reason="no good") == (0, "")
    held.append((await taker.next()).id)
    broker.kill()
    await taker.ended


async def read_letter(broker: BrokerProcess, payload: bytes) -> None:
    """It is there, once, with its body."""
    reader = await worker(broker, "reader-1")
    await reader.consumes("$queue/dlq/stores")
    letter = await reader.next()
    assert (letter.payload, letter.properties["dlq-last-error"]) == (payload, "no good")
    await reader.acks(letter)
    await reader.gets_nothing()
    reader.close()


@pytest.mark.promise("queues-2")
def test_what_was_acknowledged_survives_the_broker(servers: dict[str, object], tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings=servers) as broker:
        run(enqueue(broker))
        broker.kill()
        broker.start()
        run(take(broker, PAYLOADS[:9]))
        held: list[str] = []
        run(reject_and_hold(broker, held))
        broker.start()
        run(take(broker, [*PAYLOADS[10:], b"QoS 2"], held))
        run(read_letter(broker, PAYLOADS[9]))
        broker.stop()
    assert not (tmp_path / "data" / "broker.db").exists()


@pytest.mark.promise("queues-18")
def test_a_start_at_a_time_waits_for_kafka_alone(
    kafka: KafkaServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """Kafka stands still while it is asked where a time is: only who asked waits."""
    topic = "$queue/times"

    async def scenario() -> None:
        asker, other = await worker(broker, "asker-1"), await worker(broker, "other-1")
        await other.enqueues(topic, b"before")
        moment = datetime.fromtimestamp(time.time() + 0.1, UTC)
        while time.time() < moment.timestamp() + 0.1:  # the broker's dates may be some milliseconds late
            await other.ping()
        await other.enqueues(topic, b"behind")
        kafka.pause()
        try:
            start = moment.isoformat(timespec="milliseconds")
            answer = asyncio.ensure_future(asker.consumes(topic, start_position=start))
            await asker.ping()
            assert await other.subscribe(Subscription("plain", 0)) == (0,)
            await asker.publish("plain", b"goes on")
            assert (await other.next()).payload == b"goes on"
            assert not answer.done()
        finally:
            kafka.resume()
        assert (await answer).reason_codes == (1,)
        assert (await asker.next()).payload == b"behind"

    with BrokerProcess(tmp_path / "data", settings=servers) as broker:
        run(scenario())
