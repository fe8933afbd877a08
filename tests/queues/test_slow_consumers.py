"""Consumers that take nothing, or little: they cost nobody else anything, and nothing is stuck in them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.queue_worker import Worker, queue_broker, worker

from embermq.protocol.packets import Puback, Publish
from embermq.protocol.properties import Properties
from embermq.protocol.version import ProtocolVersion

QUEUES = """
[[queues]]
name = "one"
partitions = 1
[[queues]]
name = "dlq/one"
retry_policy.initial_backoff = "200ms"
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


async def paced(broker: BrokerProcess, name: str, count: int) -> list[float]:
    """Milliseconds from publish to delivery, one message after the other, to a consumer that settles."""
    topic = f"$queue/neighbour/{name}"
    taker = await worker(broker, f"{name}-1")
    await taker.consumes(topic, ack_mode="puback")
    publisher = await worker(broker, f"{name}-publisher")
    found: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        publisher.send(Publish(topic, bytes(1_000), 1, publisher.next_id()))
        await taker.next()
        found.append((time.perf_counter() - began) * 1_000)
    taker.close()
    publisher.close()
    return sorted(found)


async def others(broker: BrokerProcess, name: str, *, reads: bool) -> Worker:
    """A consumer in the neighbour's place for whom there is more than its socket takes; it reads, or it does not."""
    topic = f"$queue/{name}"
    other = await worker(broker, f"{name}-1")
    other.keeps = False
    await other.consumes(topic, prefetch="200", ack_mode="puback")
    if not reads:
        other.pause_reading()
    publisher = await worker(broker, f"{name}-publisher")
    for _ in range(60):
        await publisher.publish(topic, bytes(200_000), qos=1)
    publisher.close()
    return other


@pytest.mark.alone
@pytest.mark.promise("queues-32")
def test_a_consumer_that_never_reads_does_not_slow_down_its_neighbour(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        count = 400
        reading = await others(broker, "reads", reads=True)
        beside_reading = await paced(broker, "a", count)
        reading.abort()
        stalled = await others(broker, "stalls", reads=False)
        beside_stalled = await paced(broker, "b", count)
        assert stalled.is_open, "it was there all the time"
        stalled.abort()
        p99 = [found[count * 99 // 100 - 1] for found in (beside_reading, beside_stalled)]
        assert p99[1] < 2 * p99[0] + 5, p99

    run(scenario())
