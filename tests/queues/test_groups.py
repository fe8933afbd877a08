"""Groups: who gets which messages, and what becomes of them when consumers come and go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import metric
from tests.support.mqtt_client import run
from tests.support.queue_worker import Taken, Worker, queue_broker, worker
from tests.support.waiting import wait_for

from embermq.mqtt.wire.encoder import pubcomp, pubrec
from embermq.mqtt.wire.packets import Disconnect, Publish, Pubrel
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

QUEUES = """
[[queues]]
name = "loose"
ordering = "none"
[[queues]]
name = "single"
partitions = 1
[[queues]]
name = "kept"
partitions = 1
"""
GRACE_MS = 400


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with queue_broker(
        tmp_path_factory.mktemp("groups"), QUEUES, queues__disconnect_grace_ms=GRACE_MS
    ) as running:
        yield running


async def spread(publisher: Worker, topic: str, takers: list[Worker], count: int = 60) -> dict[str, set[int]]:
    """Partitions of which each consumer gets messages, when keys reach all of them. Everything is acknowledged."""
    before = {id(each): len(each.messages) for each in takers}
    for number in range(count):
        await publisher.enqueues(topic, b"m", partition_key=f"key {number}")
    await wait_for(
        lambda: sum(len(each.messages) - before[id(each)] for each in takers) == count, what="all messages"
    )
    found: dict[str, set[int]] = {}
    for each in takers:
        taken = await each.take(each.inbox.qsize())
        found[each.client_id] = {one.partition for one in taken}
        if taken:
            assert (await each.says("ack", *taken))[0] == 0
    return found


def _have(group: list[Worker], count: int) -> bool:
    return sum(len(each.messages) for each in group) == count


@pytest.mark.promise("queues-14")
def test_each_message_goes_to_one_consumer_of_every_group(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/groups/all"
        takers = [await worker(broker, f"{group}-{number}") for group in "ab" for number in range(2)]
        for each in takers:
            await each.consumes(topic)
        count = 50
        await takers[0].enqueues(topic, *(b"%d" % number for number in range(count)))
        for group in (takers[:2], takers[2:]):
            await wait_for(partial(_have, group, count))
            assert {message.payload for each in group for message in each.messages} == {
                b"%d" % number for number in range(count)
            }
            assert all(each.messages for each in group)

    run(scenario())


@pytest.mark.promise("queues-15", "queues-16")
def test_partitions_are_spread_in_blocks_by_the_time_of_joining(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/groups/blocks"
        publisher = await worker(broker, "publisher")
        takers: list[Worker] = []
        for name in ("w-z", "w-m", "w-a"):  # by time of joining, not by name
            takers.append(await worker(broker, name))
            await takers[-1].consumes(topic, prefetch="100")
        blocks = {"w-z": {0, 1, 2}, "w-m": {3, 4, 5}, "w-a": {6, 7, 8, 9}}
        assert await spread(publisher, topic, takers) == blocks
        takers.pop(1).abort()
        await publisher.ping()
        assert await spread(publisher, topic, takers) == {"w-z": {0, 1, 2, 3, 4}, "w-a": {5, 6, 7, 8, 9}}
        await takers[1].unsubscribe(topic)
        assert await spread(publisher, topic, takers[:1]) == {"w-z": set(range(10))}

    run(scenario())


@pytest.mark.promise("queues-15")
def test_more_consumers_than_partitions_idle(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        takers = [await worker(broker, f"idle-{number}") for number in range(3)]
        for each in takers:
            await each.consumes("$queue/single", prefetch="100")
        await takers[2].enqueues("$queue/single", *[b"m"] * 20)
        assert len(await takers[0].take(20)) == 20
        await takers[1].gets_nothing(takers[2])

    run(scenario())


@pytest.mark.promise("queues-15")
def test_without_ordering_who_holds_least_gets_the_next(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/loose"
        busy, free = await worker(broker, "loose-1"), await worker(broker, "loose-2")
        await busy.consumes(topic)
        await busy.enqueues(topic, *[b"m"] * 4)
        await busy.take(4)
        await free.consumes(topic)
        await busy.enqueues(topic, *[b"n"] * 4)
        assert {taken.payload for taken in await free.take(4)} == {b"n"}
        await busy.enqueues(topic, b"o", b"o")
        assert {(await each.next()).payload for each in (busy, free)} == {b"o"}

    run(scenario())


@pytest.mark.promise("queues-16")
def test_a_new_owner_begins_a_key_when_the_old_one_has_settled_it(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/groups/moved"
        first, second = await worker(broker, "own-1"), await worker(broker, "own-2")
        await first.consumes(topic)
        keys = [f"key {number}" for number in range(20)]
        for key in keys:
            await first.enqueues(topic, key.encode(), partition_key=key)
        held = {taken.payload.decode(): taken for taken in await first.take(len(keys))}
        moved = [key for key in keys if held[key].partition >= 5]
        await second.consumes(topic, prefetch="100")
        for key in keys:
            await first.enqueues(topic, b"2 " + key.encode(), partition_key=key)
        await first.gets_nothing(second)
        await first.acks(*(held[key] for key in moved))
        got = {taken.payload.decode() for taken in await second.take(len(moved))}
        assert moved and got == {f"2 {key}" for key in moved}
        await first.acks(*(held[key] for key in keys if key not in moved))
        assert len(await first.take(len(keys) - len(moved))) == len(keys) - len(moved)

    run(scenario())


@pytest.mark.promise("queues-17")
def test_messages_stay_until_every_group_has_settled_them(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/groups/stay"
        publisher = await worker(broker, "publisher")
        await publisher.enqueues(topic, b"1")
        absent = await worker(broker, "absent-1")
        await absent.consumes(topic)
        assert (await absent.next()).payload == b"1"
        absent.close()
        present = await worker(broker, "present-1")
        await present.consumes(topic)
        await publisher.enqueues(topic, b"2")
        await present.acks(*await present.take(2))
        back = await worker(broker, "absent-2")
        await back.consumes(topic)
        got = await back.take_and_ack(2)
        assert sorted(taken.payload for taken in got) == [b"1", b"2"]
        late = await worker(broker, "late-1")
        await late.consumes(topic)
        await late.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-19", "queues-16")
@pytest.mark.parametrize("version", list(ProtocolVersion))
def test_a_disconnect_gives_back_at_once(broker: BrokerProcess, version: ProtocolVersion) -> None:
    async def scenario() -> None:
        topic = f"$queue/groups/gone{version}"
        first = await worker(broker, "gone-1", version=version, acknowledges=False)
        second = await worker(broker, "gone-2")
        await first.consumes(topic)
        await second.enqueues(topic, b"m")
        await first.next()
        await second.consumes(topic)
        first.abort()
        again = await second.next()
        assert (again.payload, again.count, again.packet.dup) == (b"m", 2, False)
        await second.acks(again)

    run(scenario())


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Who may come back keeps what it holds for an hour: only the end of its session gives that back in a test."""
    with queue_broker(
        tmp_path_factory.mktemp("patient"), QUEUES, queues__disconnect_grace_ms=3_600_000
    ) as running:
        yield running


async def goes_away(broker: BrokerProcess, topic: str) -> tuple[Taken, Taken, Worker]:
    """A consumer with a kept session that has acknowledged its first message, not its second; and its rival."""
    first = await worker(broker, "grace-1", expiry_s=600, acknowledges=False)
    rival = await worker(broker, "grace-2")
    await first.consumes(topic)
    await rival.consumes(topic)
    await rival.enqueues(topic, b"1", b"2")
    one, two = await first.take(2)
    first.send_bytes(b"\x40\x02" + one.packet.packet_id.to_bytes(2, "big"))
    await first.ping()
    first.abort()
    return one, two, rival


@pytest.mark.promise("queues-19")
def test_a_kept_session_that_comes_back_in_time_still_has_what_it_acknowledged(
    patient: BrokerProcess,
) -> None:
    async def scenario() -> None:
        topic = "$queue/kept"
        one, two, rival = await goes_away(patient, topic)
        back = await worker(patient, "grace-1", expiry_s=600, clean_start=False)
        await back.gets_nothing(rival)
        assert await back.says("ack", one) == (0, "")
        again = await back.next()
        assert (again.id, again.packet.dup, again.count) == (two.id, False, 2), "sent anew, as a new PUBLISH"
        assert await back.says("ack", again) == (0, "")
        await back.unsubscribe(topic)
        await back.gets_nothing(rival)

    run(scenario())


@pytest.mark.promise("queues-19")
def test_a_kept_session_that_stays_away_loses_its_place(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/groups/grace"
        one, two, rival = await goes_away(broker, topic)
        got = await rival.take_and_ack(2)
        assert {taken.id for taken in got} == {one.id, two.id}
        back = await worker(broker, "grace-1", expiry_s=600, clean_start=False)
        assert (await back.says("ack", one))[1] == "already settled"
        await back.gets_nothing(rival)
        await rival.unsubscribe(topic)
        await rival.enqueues(topic, b"3")
        assert (await back.next()).payload == b"3", "it is in the group again"
        clean = await worker(broker, "grace-1")
        await rival.enqueues(topic, b"4")
        await clean.gets_nothing(rival)

    run(scenario())


@pytest.mark.promise("queues-19", "queues-16")
@pytest.mark.parametrize("ending", ["expiry", "disconnect", "clean start"])
def test_the_end_of_a_session_leaves_the_group(patient: BrokerProcess, ending: str) -> None:
    async def scenario() -> None:
        name = ending.replace(" ", "")
        topic, expiry_s = f"$queue/ends/{name}", 1 if ending == "expiry" else 600
        member, rival = (
            await worker(patient, f"{name}-1", expiry_s=expiry_s),
            await worker(patient, f"{name}-2"),
        )
        await member.consumes(topic)
        await rival.enqueues(topic, *(b"%d" % number for number in range(10)))
        held = await member.take(10)
        await rival.consumes(topic)
        began = time.monotonic()
        if ending == "disconnect":
            member.send(Disconnect(0, Properties(session_expiry_interval=0)))
        else:
            await member.ping()
            member.abort()
        if ending == "clean start":
            await rival.gets_nothing()
            await worker(patient, f"{name}-1", expiry_s=600)
        got = await rival.take_and_ack(10)
        assert sorted((taken.id, taken.count) for taken in got) == sorted((taken.id, 2) for taken in held)
        if ending == "expiry":
            assert time.monotonic() - began >= 0.9, "not before the session has ended"
        back = await worker(patient, f"{name}-1", clean_start=False, expiry_s=1)
        assert back.connack is not None and back.connack.session_present == (ending == "clean start")
        await rival.enqueues(topic, *(b"%d" % number for number in range(10)))
        assert len(await rival.take(10)) == 10, "all partitions are its own"
        await back.gets_nothing()
        assert (await back.says("ack", held[0]))[1] in ("already settled", "not yours")

    run(scenario())


@pytest.mark.promise("queues-19")
@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
def test_a_pubrel_that_is_owed_is_completed_on_resume_and_nothing_is_replayed(
    patient: BrokerProcess, version: ProtocolVersion
) -> None:
    async def scenario() -> None:
        topic = f"$queue/groups/pubrel{version}"
        first = await worker(
            patient, f"pubrel{version}", version=version, acknowledges=False, clean_start=False, expiry_s=600
        )
        await first.consumes(topic, 2)
        await first.enqueues(topic, b"m", qos=2)
        packet_id = (await first.next()).packet.packet_id
        released = first.expect(Pubrel, packet_id)
        first.send_bytes(pubrec(packet_id))
        await released
        first.abort()
        back = Worker(f"pubrel{version}", version=version, acknowledges=False)
        released = back.expect(Pubrel, packet_id)
        await back.connect(patient.port, clean_start=False, expiry_s=600)
        await released
        assert not [packet for packet in back.received if isinstance(packet, Publish)]
        back.send_bytes(pubcomp(packet_id))
        await back.gets_nothing()
        back.abort()
        await worker(patient, f"pubrel{version}", version=version)  # its session is over
        other = await worker(patient, "pubrel-other")
        await other.consumes(topic, consumer_group=f"pubrel{version}")
        if version is ProtocolVersion.V311:
            await other.gets_nothing()  # its PUBCOMP has settled the message
        else:
            assert (await other.next()).count == 2

    run(scenario())


@pytest.mark.promise("queues-19")
def test_deliveries_never_enter_the_offline_queue(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/groups/offline"
        first = await worker(broker, "offline-1", expiry_s=600, acknowledges=False)
        await first.consumes(topic)
        await first.enqueues(topic, *[b"m"] * 5)
        await first.take(5)
        before = metric(broker, "messages_stored")
        first.abort()
        second = await worker(broker, "offline-2")
        await second.consumes(topic)
        await second.take_and_ack(5)
        assert metric(broker, "messages_stored") == before
        await second.enqueues(topic, *[b"n"] * 5)
        await second.acks(*await second.take(5))
        back = await worker(broker, "offline-1", expiry_s=600, clean_start=False)
        await back.gets_nothing()

    run(scenario())
