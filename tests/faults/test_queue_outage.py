"""Redis is away for longer than the broker has room for what queues have to store: publishers to queues are told so,
all that was acknowledged comes, once and in order, and nothing that was refused does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.queue_worker import Worker, worker
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Puback, Publish
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

TOPIC = "$queue/work"
MIB = 1024 * 1024
BODY = bytes(10_000)
KEY = Properties(user_properties=(("partition-key", "k"),))
WORDS = "the store of queues has been away for too long: send it again later"


@pytest.fixture
def broker(redis_server: RedisServer, servers: dict[str, object], tmp_path: Path) -> Iterator[BrokerProcess]:
    """Started; one MiB may wait for Redis."""
    settings = {**servers, "redis.command_timeout_s": 1}
    narrow = {"embermq.durability.log_first.WAITING_BYTES_MAX": MIB}
    with BrokerProcess(tmp_path / "data", settings=settings, constants=narrow) as found:
        yield found
        redis_server.heal()


async def _publish(publisher: Worker, number: int) -> Puback:
    """With its answer, whatever that is."""
    packet_id = publisher.next_id()
    answer = publisher.expect(Puback, packet_id)
    publisher.send(Publish(TOPIC, b"%d" % number + BODY, 1, packet_id, False, False, KEY))
    return await answer


async def _fill(publisher: Worker) -> int:
    """Publish until the first is refused; returns how many were taken."""
    for number in range(10 * MIB // len(BODY)):
        answer = await _publish(publisher, number)
        if answer.reason_code:
            assert answer.reason_code == ReasonCode.QUOTA_EXCEEDED
            assert answer.properties is not None and answer.properties.reason_string == WORDS
            return number
    raise AssertionError("nothing was refused")


@pytest.mark.promise("queues-2", "queues-9", "queues-14")
@pytest.mark.parametrize("dies", [False, True], ids=["", "dies"])
def test_what_was_taken_in_an_outage_comes_once_and_in_order(
    broker: BrokerProcess, redis_server: RedisServer, *, dies: bool
) -> None:
    taken = 0

    async def outage() -> None:
        nonlocal taken
        producer, taker = await worker(broker, "producer"), await worker(broker, "workers-1")
        old = await worker(broker, "old", version=ProtocolVersion.V311)
        await taker.consumes(TOPIC)
        assert await producer.publish(TOPIC, b"held") == 0
        held = await taker.next()
        redis_server.pause()
        taken = await _fill(producer)
        assert await producer.publish("a/topic", b"", qos=1) < ReasonCode.UNSPECIFIED_ERROR
        old.send(Publish(TOPIC, b"refused", 1, old.next_id()))
        await wait_for(lambda: not old.is_open, what="a client of MQTT 3 is told by its end")
        settling = asyncio.ensure_future(taker.acks(held))
        await taker.ping()
        assert not settling.done(), "it is not stored"
        if dies:
            broker.kill()
            settling.cancel()
            return
        redis_server.resume()
        await settling
        await _take_all(taker, taken)
        await producer.enqueues(TOPIC, b"again")
        assert (await taker.next()).payload == b"again"

    async def afterwards() -> None:
        taker = await worker(broker, "workers-1")
        await taker.consumes(TOPIC)
        await _take_all(taker, taken, besides=b"held")  # its ack may have reached Redis, or not

    run(outage())
    if dies:
        redis_server.resume()
        broker.start()
        run(afterwards())


async def _take_all(taker: Worker, count: int, besides: bytes = b"") -> None:
    """These, and `besides` at most once."""
    number = others = 0
    while number < count:
        message = await taker.next()
        is_other = message.payload == besides
        assert is_other or message.payload == b"%d" % number + BODY
        others, number = others + is_other, number + (not is_other)
        await taker.acks(message)
    assert others <= 1
    if not besides:  # else it may be on its way
        await taker.gets_nothing()
