"""Order: of a key, of a whole queue, and what a message that fails holds up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.queue_worker import Taken, Worker, queue_broker, worker

QUEUES = """
[[queues]]
name = "strict"
ordering = "strict"
performance.delivery_timeout = "1500ms"
retry_policy.initial_backoff = "10ms"
[[queues]]
name = "loose"
ordering = "none"
[[queues]]
name = "lease"
performance.delivery_timeout = "300ms"
retry_policy.initial_backoff = "10ms"
retry_policy.max_retries = 2
retry_policy.nack_delay = "immediate"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with queue_broker(tmp_path_factory.mktemp("ordering"), QUEUES) as running:
        yield running


def payloads(taken: list[Taken]) -> list[bytes]:
    return [each.payload for each in taken]


@pytest.mark.promise("queues-30", "queues-9")
def test_a_key_has_one_unsettled_message_and_keeps_its_order_over_nacks(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/order/keys"
        taker = await worker(broker, "keys-1")
        await taker.consumes(topic)
        for number in range(4):
            for key in "ab":
                await taker.enqueues(topic, f"{key}{number}".encode(), partition_key=key)
        first = {taken.payload[:1]: taken for taken in await taker.take(2)}
        await taker.gets_nothing()
        assert {taken.payload for taken in first.values()} == {b"a0", b"b0"}
        seen: list[bytes] = []
        held = first[b"a"]
        for _ in range(3):  # a fails again and again: b goes on
            assert await taker.says("nack", held, delay="0s") == (0, "")
            held = await taker.next()
            assert held.payload == b"a0"
        other = first[b"b"]
        for number in range(1, 4):
            await taker.acks(other)
            other = await taker.next()
            assert other.payload == b"b%d" % number
        for _ in range(1, 4):
            await taker.acks(held)
            held = await taker.next()
            seen.append(held.payload)
        assert seen == [b"a1", b"a2", b"a3"]

    run(scenario())


@pytest.mark.promise("queues-30", "queues-22")
def test_a_lease_that_is_over_keeps_the_order_of_a_key_until_the_message_is_dead(
    broker: BrokerProcess,
) -> None:
    async def scenario() -> None:
        topic = "$queue/lease"
        taker, reader = await worker(broker, "lease-1"), await worker(broker, "reader-1")
        await reader.consumes("$queue/dlq/lease")
        await taker.consumes(topic)
        await taker.enqueues(topic, b"1", b"2", partition_key="k")
        assert payloads(await taker.take(3)) == [b"1", b"1", b"1"]
        letter = await reader.next()
        assert (letter.payload, letter.properties["dlq-reason"]) == (b"1", "max_retries")
        assert (await taker.next()).payload == b"2"

    run(scenario())


@pytest.mark.promise("queues-30")
def test_strict_hands_out_one_message_at_a_time_to_the_whole_group(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/strict"
        takers = [await worker(broker, f"strict-{number}") for number in range(2)]
        for each in takers:
            await each.consumes(topic)
        await takers[0].enqueues(topic, b"1", partition_key="x")
        await takers[0].enqueues(topic, b"2", partition_key="y")
        await takers[0].enqueues(topic, b"3")
        first = await takers[0].next()
        assert first.payload == b"1"
        again = await takers[0].next()  # its lease was over
        assert (again.payload, again.count) == (b"1", 2)
        await takers[0].acks(again)
        for payload in (b"2", b"3"):
            taken = await takers[0].next()
            assert taken.payload == payload
            await takers[0].acks(taken)

    run(scenario())


@pytest.mark.promise("queues-30")
def test_without_ordering_a_key_holds_up_nothing(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/loose"
        taker = await worker(broker, "loose-1")
        await taker.consumes(topic)
        await taker.enqueues(topic, *(b"%d" % number for number in range(5)), partition_key="k")
        assert sorted(payloads(await taker.take(5))) == [b"%d" % number for number in range(5)]

    run(scenario())


@pytest.mark.promise("queues-9", "queues-30", "queues-16")
def test_keys_keep_their_order_while_consumers_come_and_go(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/order/changing"
        publisher = await worker(broker, "publisher")
        keys, count = [f"k{number}" for number in range(12)], 8
        for number in range(count):
            for key in keys:
                await publisher.enqueues(topic, f"{key} {number}".encode(), partition_key=key)
        settled: dict[str, list[int]] = defaultdict(list)

        async def works(taker: Worker, messages: int) -> None:
            for _ in range(messages):
                taken = await taker.next()
                code, text = await taker.says("ack", taken)
                assert code == 0
                if not text:
                    key, number = taken.payload.decode().split()
                    settled[key].append(int(number))

        first = await worker(broker, "change-1")
        await first.consumes(topic, prefetch="4")
        await works(first, 20)
        second = await worker(broker, "change-2")
        await second.consumes(topic, prefetch="4")
        await works(first, 10)
        first.abort()  # with messages that it has not settled
        third = await worker(broker, "change-3")
        await third.consumes(topic, prefetch="4")
        await works(second, 10)
        await second.unsubscribe(topic)
        left = len(keys) * count - sum(map(len, settled.values()))
        await works(third, left)
        assert settled == {key: list(range(count)) for key in keys}

    run(scenario())
