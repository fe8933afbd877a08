"""`kill -9` of the broker while messages come in and are settled: what was acknowledged has happened, once."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import ConnectionEnded, run
from tests.support.queue_worker import Worker, named, worker

from embermq.mqtt.wire.encoder import pubrel
from embermq.mqtt.wire.packets import Packet, Puback, Pubcomp, Publish, Pubrec
from embermq.mqtt.wire.properties import Properties

QUEUES = """
[[queues]]
name = "flood/1"
partitions = 1
[[queues]]
name = "flood/330"
partitions = 1
"""
pytestmark = pytest.mark.promise("queues-2")


async def all_of(taker: Worker, count: int) -> list[bytes]:
    """What is there: at least `count`, and no more than that after the last of them."""
    found = [taken.payload for taken in await taker.take(count)]
    for _ in range(2):
        await taker.ping()
    while not taker.inbox.empty():
        found.append(taker.inbox.get_nowait().payload)
    return found


@pytest.mark.parametrize("wanted", [1, 330])
def test_what_was_acknowledged_is_there_and_what_is_repeated_is_there_once(
    broker: BrokerProcess, wanted: int
) -> None:
    """Killed after so many PUBACKs, in the middle of the stream; the publisher sends again what was not answered, with
    its dedup-id."""
    count, topic = 600, f"$queue/flood/{wanted}"

    def publish(client: Worker, number: int) -> None:
        given = Properties(user_properties=(("dedup-id", f"m{number}"),))
        client.send(Publish(topic, b"%d" % number, 1, number + 1, False, False, given))

    async def before(broker: BrokerProcess, acked: set[int]) -> None:
        client = await worker(broker, "flood-1")

        def seen(packet: Packet) -> None:
            if isinstance(packet, Puback):
                assert packet.reason_code == 0
                acked.add(packet.packet_id - 1)
                if len(acked) == wanted:
                    broker.kill()

        client.on_packet = seen
        for start in range(0, count, 50):
            first = client.expect(Puback, start + 1)
            for number in range(start, start + 50):
                publish(client, number)
            await first  # the rest is under way

    async def after(broker: BrokerProcess, acked: set[int]) -> None:
        client, taker = await worker(broker, "flood-1"), await worker(broker, "taker-1")
        await taker.consumes(topic, ack_mode="puback", prefetch="1000")
        for number in sorted(set(range(count)) - acked):
            publish(client, number)
        found = await all_of(taker, count)
        assert Counter(found) == {b"%d" % number: 1 for number in range(count)}

    acked: set[int] = set()
    with pytest.raises(ConnectionEnded):
        run(before(broker, acked))
    assert wanted <= len(acked) < count
    broker.start()
    run(after(broker, acked))


def test_a_qos_2_message_is_there_once_over_a_crash(broker: BrokerProcess) -> None:
    """Killed after PUBREC, and after PUBCOMP: the session is kept, the client repeats what MQTT lets it repeat."""

    async def before(broker: BrokerProcess) -> None:
        client = await worker(broker, "exact-1", expiry_s=600)
        for packet_id in (1, 2):
            received = client.expect(Pubrec, packet_id)
            client.send(Publish("$queue/exact", b"%d" % packet_id, 2, packet_id))
            await received
        completed = client.expect(Pubcomp, 1)
        client.send_bytes(pubrel(1))
        await completed
        broker.kill()
        await client.ended

    async def after(broker: BrokerProcess) -> None:
        client = await worker(broker, "exact-1", clean_start=False, expiry_s=600)
        received = client.expect(Pubrec, 2)
        client.send(Publish("$queue/exact", b"2", 2, 2, False, True))  # its PUBREC was lost
        await received
        for packet_id in (1, 2):
            completed = client.expect(Pubcomp, packet_id)
            client.send_bytes(pubrel(packet_id))
            await completed
        taker = await worker(broker, "taker-2")
        await taker.consumes("$queue/exact")
        assert sorted(await all_of(taker, 2)) == [b"1", b"2"]

    run(before(broker))
    broker.start()
    run(after(broker))


@pytest.mark.promise("queues-11", "queues-12", "queues-8", "queues-17")
def test_delays_windows_and_partitions_outlive_a_crash(broker: BrokerProcess) -> None:
    async def before(broker: BrokerProcess, placed: dict[bytes, int]) -> None:
        client = await worker(broker, "kept-1")
        await client.enqueues("$queue/kept", b"soon", delay="1500ms")
        await client.enqueues("$queue/kept", b"never here", delay="1h")
        await client.enqueues("$queue/kept", b"once", dedup_id="order 1", partition_key="k")
        for number in range(5):
            await client.enqueues("$queue/kept", b"%d" % number)
        taker = await worker(broker, "first-1")
        await taker.consumes("$queue/kept")
        placed |= {taken.payload: taken.partition for taken in await taker.take(6)}
        broker.kill()
        await client.ended

    async def after(broker: BrokerProcess, placed: dict[bytes, int]) -> None:
        client, taker = await worker(broker, "kept-1"), await worker(broker, "second-1")
        await client.enqueues("$queue/kept", b"once", dedup_id="order 1")
        await taker.consumes("$queue/kept")
        again = {taken.payload: taken.partition for taken in await taker.take(7)}
        assert again.pop(b"soon", -1) >= 0
        assert again == placed
        await taker.gets_nothing()

    placed: dict[bytes, int] = {}
    run(before(broker, placed))
    broker.start()
    run(after(broker, placed))


@pytest.mark.promise("queues-28", "queues-23", "queues-24")
def test_what_was_settled_stays_settled(broker: BrokerProcess) -> None:
    """Killed with the answers to ack, nack and reject, and with a message in the hands of its consumer."""

    async def before(broker: BrokerProcess, ids: dict[bytes, str]) -> None:
        client = await worker(broker, "settled-1")
        await client.consumes("$queue/settled")
        await client.enqueues("$queue/settled", b"acked", b"nacked", b"rejected", b"held")
        taken = {each.payload: each for each in await client.take(4)}
        ids |= {payload: each.id for payload, each in taken.items()}
        assert await client.says("ack", taken[b"acked"]) == (0, "")
        assert await client.says("nack", taken[b"nacked"], delay="1h") == (0, "")
        assert await client.says("reject", taken[b"rejected"]) == (0, "")
        broker.kill()
        await client.ended

    async def after(broker: BrokerProcess, ids: dict[bytes, str]) -> None:
        client = await worker(broker, "settled-1")
        await client.consumes("$queue/settled")
        held = await client.next()
        assert (held.payload, held.id, held.count) == (b"held", ids[b"held"], 1)
        await client.gets_nothing()
        assert await says(client, "ack", ids[b"acked"]) == (0, "already settled")
        assert await says(client, "ack", ids[b"rejected"]) == (0, "already settled")
        assert (await says(client, "ack", ids[b"nacked"]))[0] == 0x83  # its last holder was of another life
        await client.consumes("$queue/dlq/settled")
        dead = await client.next()
        assert (dead.payload, dead.properties["dlq-reason"]) == (b"rejected", "rejected")
        await client.gets_nothing()

    async def says(client: Worker, verb: str, message_id: str) -> tuple[int, str]:
        packet_id = client.next_id()
        answer = client.expect(Puback, packet_id)
        given = Properties(user_properties=named({"message_id": message_id}))
        client.send(Publish(f"$queue/settled/${verb}", b"", 1, packet_id, False, False, given))
        told = await answer
        text = told.properties.reason_string if told.properties is not None else None
        return told.reason_code, text or ""

    ids: dict[bytes, str] = {}
    run(before(broker, ids))
    broker.start()
    run(after(broker, ids))


@pytest.mark.promise("queues-28")
def test_acks_are_true_wherever_the_broker_is_killed(broker: BrokerProcess) -> None:
    """Killed in the middle of a stream of acks: whoever had PUBACK is not bothered again, everybody else is."""
    count = 300

    async def before(broker: BrokerProcess, acked: set[str], ids: dict[str, bytes]) -> None:
        client = await worker(broker, "stream-1")
        await client.consumes("$queue/stream", prefetch="1000")
        await client.enqueues("$queue/stream", *(b"%d" % number for number in range(count)))
        asked: dict[int, str] = {}

        def seen(packet: Packet) -> None:
            if isinstance(packet, Puback):
                assert packet.reason_code == 0
                acked.add(asked[packet.packet_id])
                if len(acked) == count // 3:
                    broker.kill()

        taken = await client.take(count)
        ids |= {each.id: each.payload for each in taken}
        client.on_packet = seen
        for start in range(0, count, 20):
            packet_ids = [client.next_id() for _ in range(20)]
            first = client.expect(Puback, packet_ids[0])
            for packet_id, each in zip(packet_ids, taken[start : start + 20], strict=True):
                asked[packet_id] = each.id
                given = Properties(user_properties=(("message-id", each.id),))
                client.send(Publish("$queue/stream/$ack", b"", 1, packet_id, False, False, given))
            await first

    async def after(broker: BrokerProcess, acked: set[str], ids: dict[str, bytes]) -> None:
        client = await worker(broker, "stream-1")
        await client.consumes("$queue/stream", prefetch="1000")
        await client.enqueues("$queue/stream", b"last")
        found: set[str] = set()
        while (taken := await client.next()).payload != b"last":
            found.add(taken.id)
        for _ in range(2):
            await client.ping()
        while not client.inbox.empty():
            found.add(client.inbox.get_nowait().id)
        assert not found & acked
        assert found <= ids.keys()

    acked: set[str] = set()
    ids: dict[str, bytes] = {}
    with pytest.raises(ConnectionEnded):
        run(before(broker, acked, ids))
    assert len(acked) < count
    broker.start()
    run(after(broker, acked, ids))
