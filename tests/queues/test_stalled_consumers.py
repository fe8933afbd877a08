"""Consumers that are connected and take nothing: what waited for them goes to others, free of charge."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import metric
from tests.support.mqtt_client import run
from tests.support.queue_worker import Taken, Worker, queue_broker, worker

from embermq.mqtt.wire.packets import Puback

LEASE_S = 0.4
QUEUES = "".join(
    f"""
[[queues]]
name = "{name}"
ordering = "{ordering}"
partitions = {partitions}
performance.delivery_timeout = "400ms"
retry_policy.initial_backoff = "10ms"
"""
    for name, ordering, partitions in (
        ("partition", "partition", 2),
        ("none", "none", 2),
        ("strict", "strict", 1),
        ("again", "partition", 2),
        ("beside", "partition", 1),
        ("socket", "partition", 2),
    )
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with queue_broker(tmp_path_factory.mktemp("stalled"), QUEUES) as running:
        yield running


def explained(broker: BrokerProcess, queue: str) -> list[tuple[str, str]]:
    """Groups, and what keeps messages from their consumers."""
    address = f"http://127.0.0.1:{broker.http_port}/api/v1/queues/{queue}/explain"
    return [(each["group"], each["code"]) for each in httpx.get(address, timeout=30).json()]


async def all_of(taker: Worker, payloads: set[bytes]) -> dict[bytes, Taken]:
    """What it is sent, acked as it comes, until each payload has been there; the first delivery of each."""
    found: dict[bytes, Taken] = {}
    while found.keys() != payloads:
        taken = await taker.next()
        found.setdefault(taken.payload, taken)
        await taker.says("ack", taken)
    return found


@pytest.mark.promise("queues-22", "queues-32")
@pytest.mark.parametrize("name", ["partition", "none", "strict"])
def test_what_waits_for_room_in_a_window_goes_to_another_consumer_after_a_lease(
    broker: BrokerProcess, name: str
) -> None:
    async def scenario() -> None:
        topic, payloads = f"$queue/{name}", {b"%d" % number for number in range(6)}
        hung = await worker(broker, f"{name}-1", acknowledges=False, receive_maximum=2)
        await hung.consumes(topic)
        await hung.enqueues(topic, *sorted(payloads))
        before = metric(broker, "queue_consumers_stalled")
        until = time.monotonic() + 3 * LEASE_S
        while time.monotonic() < until:  # leases are over, and others in the outbox have waited for as long
            await hung.ping()
        other = await worker(broker, f"{name}-2")
        await other.consumes(topic)
        found = await all_of(other, payloads)
        never_sent = payloads - {packet.payload for packet in hung.messages}
        assert len(never_sent) >= 3
        assert {found[payload].count for payload in never_sent} == {1}, "they never left the broker"
        assert metric(broker, "queue_consumers_stalled") >= before + 1

    run(scenario())


@pytest.mark.promise("queues-22", "queues-16")
def test_who_takes_again_has_its_partitions_again(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/again"
        hung = await worker(broker, "again-1", acknowledges=False, receive_maximum=1)
        await hung.consumes(topic)
        other = await worker(broker, "again-2")
        await other.consumes(topic)
        payloads = {b"%d" % number for number in range(4)}
        await other.enqueues(topic, *sorted(payloads))
        first = await hung.next()
        await all_of(other, payloads)
        hung.send(Puback(first.packet.packet_id))
        await hung.ping()
        await other.enqueues(topic, b"a", b"b")
        again, there = await hung.next(), await other.next()
        assert {again.payload, there.payload} == {b"a", b"b"}
        await hung.acks(again)
        await other.acks(there)

    run(scenario())


@pytest.mark.promise("queues-22", "queues-42a")
def test_a_lone_consumer_gets_it_as_soon_as_there_is_room(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/beside"
        full = await worker(broker, "lone-1", acknowledges=False, receive_maximum=1)
        await full.consumes("plain/beside")
        await full.consumes(topic)
        publisher = await worker(broker, "publisher")
        await publisher.enqueues("plain/beside", b"plain")
        plain = await full.next()
        await publisher.enqueues(topic, b"work")
        until = time.monotonic() + 2 * LEASE_S
        while time.monotonic() < until:
            await full.ping()
        await full.gets_nothing()
        assert explained(broker, "beside") == [("lone", "consumer_stalled")]
        full.send(Puback(plain.packet.packet_id))
        taken = await full.next()
        assert (taken.payload, taken.count) == (b"work", 1)
        await full.acks(taken)

    run(scenario())


@pytest.mark.promise("queues-22", "queues-32")
def test_what_waits_for_a_socket_that_takes_nothing_goes_to_another_consumer(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic, payloads = "$queue/socket", {bytes([number]) * 900_000 for number in range(16)}
        slow = await worker(broker, "socket-1")
        await slow.consumes(topic)
        slow.pause_reading()
        publisher = await worker(broker, "publisher")
        await publisher.enqueues(topic, *sorted(payloads))
        other = await worker(broker, "socket-2")
        await other.consumes(topic, prefetch="1")
        found = await all_of(other, payloads)
        assert slow.is_open, "it is there all the time"
        assert {found[payload].count for payload in sorted(payloads)[-4:]} == {1}

    run(scenario())
