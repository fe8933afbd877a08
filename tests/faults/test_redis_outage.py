"""Redis is away for longer than the broker has room for: nothing is refused to publishers, memory is bounded, and what
stayed in the log is stored when Redis answers again, whatever is killed meanwhile."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.hostile.watching import cpu_s
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import arrived, client, gone, kept, make, talk
from tests.support.metrics import metric, resident_mib
from tests.support.mqtt_client import MqttClient
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for, wait_while_it_goes_on

from embermq.mqtt.wire.packets import Packet, Puback, Publish, Pubrec, Pubrel, Subscription
from embermq.mqtt.wire.properties import Properties

MIB = 1024 * 1024
BODY = bytes(1_000)
MESSAGES = 6_000
"""Six times the bound."""
RATE = 5_000
LONG_S = float(os.environ.get("OUTAGE_S", "60"))
"""Of the long outage."""


@pytest.fixture
def broker(redis_server: RedisServer, servers: dict[str, object], tmp_path: Path) -> Iterator[BrokerProcess]:
    """Started; one MiB may wait for Redis."""
    found = BrokerProcess(
        tmp_path / "data",
        settings={
            **servers,
            "redis.command_timeout_s": 1,
            "device.queue_limit": 60_000,
        },
        constants={
            "embermq.durability.log_first.WAITING_BYTES_MAX": MIB,
            "embermq.app.kafka_log.CONNECT_WAIT_S": 1,
        },
    )
    try:
        found.start()
        yield found
        assert "Traceback" not in found.output()
    finally:
        redis_server.heal()
        found.close()


async def absent(broker: BrokerProcess, name: str, *filters: str, qos: int) -> None:
    found = await kept(broker, name)
    for topic_filter in filters:
        await found.subscribe(Subscription(topic_filter, qos))
    await gone(found)


async def pour(publisher: MqttClient, topic: str, numbers: range, qos: int, *, rate: float = 1e9) -> None:
    """Publish with a window of 500; returns when everything is taken. A QoS 2 message is not released: that waits."""
    window = asyncio.Semaphore(500)
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    def take(packet: Packet) -> None:
        if isinstance(packet, Puback | Pubrec):
            assert packet.reason_code < 0x80, packet
            window.release()

    publisher.on_packet = take
    for index, number in enumerate(numbers):
        await window.acquire()
        early_s = began_s + index / rate - loop.time()
        if early_s > 0.01:
            await asyncio.sleep(early_s)  # paced: this is the load, not a wait for something
        publisher.send(Publish(topic, b"%d" % number + BODY, qos, publisher.next_id()))
    for _ in range(500):
        await asyncio.wait_for(window.acquire(), 60)


def numbers_of(payloads: list[bytes]) -> list[int]:
    return [int(payload[: -len(BODY)]) for payload in payloads]


def ends_with(messages: list[Publish], payload: bytes) -> bool:
    return bool(messages) and messages[-1].payload == payload


async def catch_up(broker: BrokerProcess) -> None:
    def is_done() -> bool:
        return not metric(broker, "sessions_behind") and not metric(broker, "session_store_waiting_ticks")

    await wait_while_it_goes_on(is_done, lambda: metric(broker, "messages_stored"), "everybody catches up")


@pytest.mark.promise("device-1", "device-9", "device-11")
@pytest.mark.parametrize(
    "dies", [*(pytest.param(when, marks=pytest.mark.in_faults) for when in ("", "meanwhile")), "catching up"]
)
def test_nothing_is_refused_and_everything_arrives_once_in_order(
    broker: BrokerProcess, redis_server: RedisServer, dies: str
) -> None:
    async def before() -> None:
        await absent(broker, "one", "one", qos=1)
        await absent(broker, "two", "two", qos=2)
        for member in ("m1", "m2"):
            await absent(broker, member, "$share/g/one", qos=1)
        live = await kept(broker, "live")
        await live.subscribe(Subscription("one", 1))
        clean = await client(broker, "clean")
        await clean.subscribe(Subscription("one", 1))
        publishers = [await client(broker, f"p{number}") for number in range(2)]
        redis_server.pause()
        await pour(publishers[0], "one", range(MESSAGES), 1)
        await pour(publishers[1], "two", range(500), 2)
        assert numbers_of(await arrived(clean, MESSAGES)) == list(range(MESSAGES))
        assert metric(broker, "sessions_behind") >= 2
        assert metric(broker, "session_store_waiting_bytes") < 4 * MIB
        with suppress(ConnectionError):
            refused = await make("one").connect(
                broker.port, clean_start=False, properties=Properties(session_expiry_interval=1_000)
            )
            assert refused.reason_code == 0x88
        if dies == "meanwhile":
            broker.kill()
        redis_server.resume()
        if dies == "catching up":
            await wait_for(
                lambda: redis_server.ask("DBSIZE") > 4_000, 60, "it stores what was left in the log"
            )
            broker.kill()
        if not dies:
            for packet_id in range(1, 501):
                publishers[1].send(Pubrel(packet_id))
            await catch_up(broker)

    async def after() -> None:
        if dies:
            again = await client(broker, "again")
            assert await again.publish("one", b"%d" % MESSAGES + BODY, qos=1) < 0x80
            assert await again.publish("two", b"500" + BODY, qos=1) < 0x80
        one = await kept(broker, "one")
        two = await kept(broker, "two")
        count = MESSAGES + bool(dies)
        assert numbers_of(await arrived(one, count, 120)) == list(range(count))
        assert numbers_of(await arrived(two, 500 + bool(dies), 60)) == list(range(500 + bool(dies)))
        members = [await kept(broker, member) for member in ("m1", "m2")]
        await wait_for(lambda: sum(len(member.messages) for member in members) >= count, 120, "the group's")
        found = [numbers_of([message.payload for message in member.messages]) for member in members]
        assert sorted(found[0] + found[1]) == list(range(count))
        if not dies:
            live = await kept(broker, "live")
            assert await one.publish("one", b"-1" + BODY, qos=1) < 0x80
            await wait_for(lambda: bool(live.messages), 60)

    talk(before)
    redis_server.heal()
    if dies:
        broker.restart()
    talk(after)


@pytest.mark.in_faults
def test_a_long_outage_at_five_thousand_a_second(broker: BrokerProcess, redis_server: RedisServer) -> None:
    count = int(LONG_S * RATE)

    async def dialogue() -> None:
        for number in range(3):
            await absent(broker, f"s{number}", "t", qos=1 + number % 2)
        publisher = await client(broker, "p")
        await pour(publisher, "t", range(10_000), 1)
        await catch_up(broker)
        before_mib = resident_mib(broker)
        redis_server.pause()
        await pour(publisher, "t", range(10_000, 10_000 + count), 1, rate=RATE)
        assert resident_mib(broker) < before_mib + 100
        redis_server.resume()
        resumed_s, resumed_cpu_s = time.monotonic(), cpu_s(broker)
        rest = range(10_000 + count, 10_000 + count + 2_000)
        await pour(publisher, "t", rest, 1, rate=500)
        await wait_while_it_goes_on(
            lambda: not metric(broker, "sessions_behind"),
            lambda: metric(broker, "messages_stored"),
            "everybody catches up",
        )
        sys.stdout.write(
            f"{count} messages for three sessions were caught up in {time.monotonic() - resumed_s:.0f} s,"
            f" {cpu_s(broker) - resumed_cpu_s:.0f} s of them the broker's own on a core\n"
        )
        last = b"%d" % (rest.stop - 1) + BODY
        for number in range(3):
            messages = (await kept(broker, f"s{number}")).messages
            await wait_for(partial(ends_with, messages, last), 120)
            found = numbers_of([message.payload for message in messages])
            # `device.queue_limit` has dropped the oldest.
            assert found == list(range(found[0], rest.stop)) and len(found) >= min(59_000, count)

    talk(dialogue, within_s=3_600 + 60 * LONG_S)
