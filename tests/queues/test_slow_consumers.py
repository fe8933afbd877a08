"""Consumers that take nothing, or little: they cost nobody else anything, and nothing is stuck in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import metric
from tests.support.mqtt_client import run
from tests.support.queue_worker import queue_broker, worker
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Puback, Publish
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

QUEUES = """
[[queues]]
name = "one"
partitions = 1
[[queues]]
name = "dlq/one"
retry_policy.initial_backoff = "200ms"
[[queues]]
name = "dlq/rapid"
retry_policy.initial_backoff = "0s"
[[queues]]
name = "brief"
partitions = 1
limits.ttl_action = "dlq"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with queue_broker(
        tmp_path_factory.mktemp("slow"),
        QUEUES,
        queues__allow_ack_mode_none="true",
        mqtt__slow_reader_s=0,
    ) as running:
        yield running


@pytest.mark.promise("queues-34", "queues-32")
def test_what_is_too_large_for_its_consumer_is_a_dead_letter_and_holds_up_nothing(
    broker: BrokerProcess,
) -> None:
    async def scenario() -> None:
        topic = "$queue/one"
        small = await worker(broker, "small-1", packet_bytes_max=600)
        reader = await worker(broker, "reader-1")
        small_reader = await worker(broker, "letters-1", packet_bytes_max=600)
        await reader.consumes("$queue/dlq/one")
        await small_reader.consumes("$queue/dlq/one")
        await small.consumes(topic)
        await reader.enqueues(topic, b"1", bytes(1_000), b"2")
        assert [taken.payload for taken in await small.take(2)] == [b"1", b"2"]
        letter = await reader.next()
        assert letter.payload == bytes(1_000)
        told = letter.properties
        assert told["dlq-reason"] == "rejected"
        assert "small-1 takes 600" in told["dlq-last-error"]
        await small_reader.gets_nothing()
        large_reader = await worker(broker, "letters-2")
        await large_reader.consumes("$queue/dlq/one")
        small_reader.abort()
        assert (await large_reader.next()).payload == bytes(1_000), "the letter itself is never thrown away"

    run(scenario())


@pytest.mark.promise("queues-32")
def test_a_dead_letter_that_is_too_large_is_not_tried_all_the_time(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        sender = await worker(broker, "rapid-1")
        await sender.consumes("$queue/rapid")
        await sender.enqueues("$queue/rapid", bytes(1_000))
        assert (await sender.says("reject", await sender.next()))[0] == 0
        before = metric(broker, "dropped_too_large")
        small = await worker(broker, "rapidletters-1", packet_bytes_max=600)
        await small.consumes("$queue/dlq/rapid")
        await small.gets_nothing()
        await wait_for(lambda: metric(broker, "dropped_too_large") > before)
        for _ in range(50):
            await small.ping()
        assert metric(broker, "dropped_too_large") <= before + 2

    run(scenario())


@pytest.mark.promise("queues-31")
def test_what_expires_before_there_is_room_is_not_sent(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/brief"
        full = await worker(broker, "full-1", acknowledges=False, receive_maximum=1)
        reader = await worker(broker, "reader-1")
        await reader.consumes("$queue/dlq/brief")
        await full.consumes("plain/brief")
        await reader.enqueues("plain/brief", b"plain")
        plain = await full.next()
        await full.consumes(topic)  # its window is full: one message of the queue waits for it
        await reader.publish(topic, b"late", qos=1, properties=Properties(message_expiry_interval=1))
        began = time.monotonic()
        while time.monotonic() - began < 1.1:
            await full.ping()
        full.send(Puback(plain.packet.packet_id))
        letter = await reader.next()
        assert (letter.payload, letter.properties["dlq-reason"]) == (b"late", "expired")
        await full.gets_nothing()
        await reader.enqueues(topic, b"in time")
        assert (await full.next()).payload == b"in time"

    run(scenario())


@pytest.mark.promise("queues-27")
@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
def test_ack_mode_none_is_at_most_once_where_it_is_allowed(
    broker: BrokerProcess, version: ProtocolVersion
) -> None:
    async def scenario() -> None:
        topic = f"$queue/none{version}"
        taker = await worker(broker, "none-1", version=version)
        mode = "none" if version is ProtocolVersion.V5 else ""
        assert (await taker.consumes(topic, 0, ack_mode=mode)).reason_codes == (0,)
        publisher = await worker(broker, "publisher")
        await publisher.enqueues(topic, *(b"%d" % number for number in range(100)))
        got = await taker.take(100)
        assert {taken.packet.qos for taken in got} == {0}
        taker.abort()
        second = await worker(broker, "none-2", version=version)
        await second.consumes(topic, 0, ack_mode=mode)
        await second.gets_nothing()

    run(scenario())


ROUNDS = 3
AHEAD = 32
"""Messages of the neighbour that are under way at a time: as many as keep the broker busy."""
COUNT = 2_000
BULK = bytes(200_000)


async def full_rate(broker: BrokerProcess, name: str) -> float:
    """The p99 in milliseconds from publish to delivery, for a consumer that settles what it gets."""
    topic = f"$queue/neighbour/{name}"
    taker, publisher = await worker(broker, f"{name}-1"), await worker(broker, f"{name}-publisher")
    await taker.consumes(topic, ack_mode="puback", prefetch="1000")
    sent: list[float] = []
    took: list[float] = []
    while len(took) < COUNT:
        while len(sent) < min(COUNT, len(took) + AHEAD):
            payload = b"%06d" % len(sent) + bytes(1_000)
            sent.append(time.perf_counter())
            publisher.send(Publish(topic, payload, 1, publisher.next_id()))
        taken = await taker.next()
        took.append((time.perf_counter() - sent[int(taken.payload[:6])]) * 1_000)
    taker.close()
    publisher.close()
    return sorted(took)[COUNT * 99 // 100 - 1]


async def beside_another(broker: BrokerProcess, name: str, *, reads: bool) -> float:
    """The p99 of a neighbour while another consumer, who reads or does not, is sent more than its socket takes, and
    more comes for it."""
    topic = f"$queue/{name}"
    other, publisher = await worker(broker, f"{name}-1"), await worker(broker, f"{name}-publisher")
    other.keeps = False
    await other.consumes(topic, prefetch="200", ack_mode="puback")
    if not reads:
        other.pause_reading()
    for _ in range(60):
        await publisher.publish(topic, BULK, qos=1)
    more = asyncio.create_task(publisher.enqueues(topic, *[BULK] * 20))
    found = await full_rate(broker, f"beside{name}")
    await more
    assert other.is_open, "it was there all the time"
    other.abort()
    publisher.close()
    return found


@pytest.mark.in_perf
@pytest.mark.promise("queues-32")
def test_a_consumer_that_never_reads_does_not_slow_down_its_neighbour(broker: BrokerProcess) -> None:
    """The best of some rounds, taken in turn: what else the machine does only adds to a figure."""

    async def scenario() -> None:
        reading: list[float] = []
        stalled: list[float] = []
        for number in range(ROUNDS):
            reading.append(await beside_another(broker, f"reads{number}", reads=True))
            stalled.append(await beside_another(broker, f"stalls{number}", reads=False))
        assert min(stalled) < 2 * min(reading), (reading, stalled)

    run(scenario())
