"""kill -9 of the broker on the way from delivery to settlement: nothing is lost, nothing is in two places."""

from __future__ import annotations

import time

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.queue_worker import Taken, Worker, worker

from embermq.mqtt.wire.encoder import pubrec
from embermq.mqtt.wire.packets import Connack, Publish, Pubrel
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

QUEUES = """
[[queues]]
name = "backoff"
retry_policy.initial_backoff = "2s"
retry_policy.nack_delay = "backoff"
[[queues]]
name = "order"
partitions = 2
"""


def again(broker: BrokerProcess) -> None:
    broker.kill()
    broker.start()


@pytest.mark.promise("queues-19", "queues-21")
def test_after_delivery_it_is_delivered_again_with_the_same_id_and_not_charged(broker: BrokerProcess) -> None:
    seen: list[Taken] = []

    async def before() -> None:
        taker = await worker(broker, "kill-1")
        await taker.consumes("$queue/delivered")
        await taker.enqueues("$queue/delivered", b"m")
        seen.append(await taker.next())
        broker.kill()  # here, since a connection that ends before is the consumer's failure

    async def after() -> None:
        taker = await worker(broker, "kill-1")
        await taker.consumes("$queue/delivered")
        taken = await taker.next()
        assert (taken.id, taken.count) == (seen[0].id, 1)
        assert await taker.says("ack", seen[0]) == (0, "")

    run(before())
    broker.start()
    run(after())


@pytest.mark.promise("queues-23", "queues-28")
def test_an_ack_that_was_answered_holds_and_its_repeat_hears_so(broker: BrokerProcess) -> None:
    """Killed as soon as the answers are there: each one comes from the receipt of its commit."""
    seen: list[Taken] = []
    count = 30

    async def before() -> None:
        taker = await worker(broker, "kill-1")
        await taker.consumes("$queue/acked", prefetch="100")
        await taker.enqueues("$queue/acked", *(b"%d" % number for number in range(count)))
        seen.extend(await taker.take(count))
        await taker.acks(*seen[:10])
        for taken in seen[10:20]:
            await taker.acks(taken)

    async def after() -> None:
        taker = await worker(broker, "kill-1")
        await taker.consumes("$queue/acked", prefetch="100")
        left = {taken.id for taken in await taker.take_and_ack(count - 20)}  # suspects, one at a time
        assert left == {taken.id for taken in seen[20:]}
        await taker.gets_nothing()
        assert await taker.says("ack", seen[0]) == (0, "already settled")

    run(before())
    again(broker)
    run(after())


@pytest.mark.promise("queues-23", "queues-27")
@pytest.mark.parametrize("mode", ["explicit", "puback"])
def test_acks_on_their_way_are_done_or_not_and_nothing_is_lost(broker: BrokerProcess, mode: str) -> None:
    count, topic = 200, f"$queue/under-way/{mode}"
    sent: set[bytes] = set()

    async def before() -> None:
        taker = await worker(broker, "kill-1", acknowledges=mode == "puback")
        await taker.consumes(topic, prefetch="1000", ack_mode=mode)
        publisher = await worker(broker, "publisher")
        await publisher.enqueues(topic, *(b"%d" % number for number in range(count)))
        for number in range(count // 2):
            taken = await taker.next()
            if mode == "explicit":
                given = Properties(user_properties=(("message-id", taken.id),))
                taker.send(Publish(f"{topic}/$ack", b"", 1, number + 1, False, False, given))
        await taker.ping()
        broker.kill()
        sent.update(message.payload for message in taker.messages)

    async def after() -> None:
        taker = await worker(broker, "kill-1")
        await taker.consumes(topic, prefetch="1000")
        left: set[bytes] = set()
        while len(left | sent) < count:
            left.add((await taker.next()).payload)

    run(before())
    broker.start()
    run(after())


@pytest.mark.promise("queues-24")
def test_a_backoff_survives(broker: BrokerProcess) -> None:
    nacked: list[float] = []

    async def before() -> None:
        taker = await worker(broker, "kill-1")
        await taker.consumes("$queue/backoff")
        await taker.enqueues("$queue/backoff", b"m")
        assert await taker.says("nack", await taker.next(), reason="later") == (0, "")
        nacked.append(time.time())

    async def after() -> None:
        taker = await worker(broker, "kill-1")
        await taker.consumes("$queue/backoff")
        taken = await taker.next()
        assert time.time() - nacked[0] >= 1.9, "it waits for the rest of its time"
        assert taken.count == 2

    run(before())
    again(broker)
    run(after())


@pytest.mark.promise("queues-16", "queues-30")
def test_in_the_middle_of_a_rebalance_all_is_assigned_anew_and_keys_keep_their_order(
    broker: BrokerProcess,
) -> None:
    keys = [f"k{number}" for number in range(6)]
    settled: dict[str, list[int]] = {key: [] for key in keys}

    async def before() -> None:
        first, second = await worker(broker, "move-1"), await worker(broker, "move-2")
        for number in range(3):
            for key in keys:
                await first.enqueues("$queue/order", f"{key} {number}".encode(), partition_key=key)
        await first.consumes("$queue/order", prefetch="4")
        for taken in await first.take(3):
            await first.acks(taken)
            note(taken)
        await second.consumes("$queue/order", prefetch="4")
        broker.kill()

    def note(taken: Taken) -> None:
        key, number = taken.payload.decode().split()
        settled[key].append(int(number))

    async def after() -> None:
        takers = [await worker(broker, f"move-{number}") for number in (2, 3)]
        for each in takers:
            await each.consumes("$queue/order", prefetch="2")
        left = 3 * len(keys) - sum(map(len, settled.values()))
        while left:
            for each in takers:
                while left and not each.inbox.empty():
                    taken = await each.next()
                    await each.acks(taken)
                    note(taken)
                    left -= 1
                await each.ping()
        assert settled == {key: [0, 1, 2] for key in keys}

    run(before())
    broker.start()
    run(after())


@pytest.mark.promise("queues-34")
def test_a_dead_letter_is_in_one_of_both_places(broker: BrokerProcess) -> None:
    count = 60

    async def before() -> None:
        taker = await worker(broker, "kill-1")
        await taker.consumes("$queue/dead", prefetch="100")
        await taker.enqueues("$queue/dead", *(b"%d" % number for number in range(count)))
        for number, taken in enumerate(await taker.take(count)):
            given = Properties(user_properties=(("message-id", taken.id),))
            taker.send(Publish("$queue/dead/$reject", b"", 1, number + 1, False, False, given))
            if number == count // 2:
                await taker.ping()
        broker.kill()

    async def after() -> None:
        source, letters = await worker(broker, "kill-1"), await worker(broker, "reader-1")
        await source.consumes("$queue/dead", prefetch="100")
        await letters.consumes("$queue/dlq/dead", prefetch="100")
        found: list[bytes] = []
        while len(found) < count:
            for each in (source, letters):
                while not each.inbox.empty():
                    found.append((await each.next()).payload)
                await each.ping()
        assert sorted(found) == sorted(b"%d" % number for number in range(count))
        await source.gets_nothing(letters)

    run(before())
    broker.start()
    run(after())


@pytest.mark.promise("queues-19")
@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
def test_a_pubrel_that_is_owed_survives(broker: BrokerProcess, version: ProtocolVersion) -> None:
    ids: list[int] = []
    name = f"kept{version}"

    async def before() -> None:
        taker = await worker(
            broker, name, version=version, acknowledges=False, clean_start=False, expiry_s=600
        )
        await taker.consumes(f"$queue/{name}", 2)
        await taker.enqueues(f"$queue/{name}", b"m", qos=2)
        ids.append((await taker.next()).packet.packet_id)
        released = taker.expect(Pubrel, ids[0])
        taker.send_bytes(pubrec(ids[0]))
        await released

    async def after() -> None:
        back = Worker(name, version=version)
        released = back.expect(Pubrel, ids[0])
        await back.connect(broker.port, clean_start=False, expiry_s=600)
        await released
        assert [type(packet) for packet in back.received[:2]] == [Connack, Pubrel], "before anything is sent"
        taken = await back.next()
        assert (taken.payload, taken.packet.dup) == (b"m", False), "the lease has ended with the broker"

    run(before())
    again(broker)
    run(after())
