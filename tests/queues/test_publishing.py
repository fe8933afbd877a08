"""PUBLISH and wills to a queue: what is taken, what is refused and how, what becomes durable."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import ConnectionEnded, run
from tests.support.queue_worker import Worker, named, queue_broker, worker

from embermq.mqtt.wire.encoder import pubrel
from embermq.mqtt.wire.packets import Connack, Puback, Pubcomp, Publish, Pubrec, Subscription, Will
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

V5, V311 = ProtocolVersion.V5, ProtocolVersion.V311
VERSIONS = list(ProtocolVersion)
QUEUES = """
[[queues]]
name = "one"
partitions = 1
[[queues]]
name = "in/order"
partitions = 1
[[queues]]
name = "small"
limits.max_message_size = 16
[[queues]]
name = "full"
limits.max_queue_depth = 2
[[queues]]
name = "full/nobody"
limits.max_queue_depth = 2
[[queues]]
name = "full/old"
limits.max_queue_depth = 2
[[queues]]
name = "new"
limits.max_queue_depth = 2
limits.overflow = "drop-new"
[[queues]]
name = "head"
partitions = 1
limits.max_queue_depth = 2
limits.overflow = "drop-head"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("publishing")
    with queue_broker(folder, QUEUES, queues__dedup_window_ms=2_000) as running:
        yield running


async def told(client: Worker, topic: str, payload: bytes, *, retain: bool = False, **wishes: str) -> Puback:
    """Publish with QoS 1; the whole answer."""
    packet_id = client.next_id()
    answer = client.expect(Puback, packet_id)
    properties = Properties(user_properties=named(wishes)) if client.version is V5 else None
    client.send(Publish(topic, payload, 1, packet_id, retain, False, properties))
    return await answer


def said(answer: Puback | Pubrec) -> str:
    """Its reason string."""
    return (answer.properties.reason_string if answer.properties is not None else None) or ""


@pytest.mark.promise("queues-1", "queues-2")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_enqueues_with_every_qos(broker: BrokerProcess, version: ProtocolVersion) -> None:
    async def scenario() -> None:
        topic = f"$queue/in/order/{int(version)}"
        client = await worker(broker, f"versions{version}", version=version)
        for qos in (0, 1, 2, 0, 1, 2):
            assert await client.publish(topic, b"qos %d" % qos, qos=qos) == 0
        taker = await worker(broker, f"taker{version}")
        await taker.consumes(topic, 2)
        taken = await taker.take(6)
        assert Counter(each.payload for each in taken) == {b"qos 0": 2, b"qos 1": 2, b"qos 2": 2}
        assert {(each.payload, each.packet.qos) for each in taken} == {
            (b"qos 0", 1),
            (b"qos 1", 1),
            (b"qos 2", 2),
        }

    run(scenario())


@pytest.mark.promise("queues-1", "queues-9")
def test_the_whole_rest_of_the_topic_is_the_name(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        client = await worker(broker, "levels-1")
        names = ["tasks", "tasks/images", "tasks/mails", "tasks/images/large"]
        takers = []
        for name in names:
            takers.append(await worker(broker, f"of-{name.replace('/', '_')}"))
            await takers[-1].consumes(f"$queue/{name}")
        for name in names:
            await client.enqueues(f"$queue/{name}", name.encode())
        for name, taker in zip(names, takers, strict=True):
            taken = await taker.next()
            assert (taken.payload, taken.packet.topic) == (name.encode(), f"$queue/{name}")
        await takers[0].gets_nothing(*takers[1:])

    run(scenario())


@pytest.mark.promise("queues-9")
def test_a_key_is_first_in_first_out(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/keyed"
        client, taker = await worker(broker, "keyed-1"), await worker(broker, "keyed-taker")
        for number in range(30):
            await client.enqueues(topic, b"%d" % number, partition_key=f"key {number % 3}")
        await taker.consumes(topic)
        seen: dict[int, list[int]] = {}
        for _ in range(30):
            taken = await taker.next()
            seen.setdefault(int(taken.payload) % 3, []).append(int(taken.payload))
            await taker.acks(taken)
        assert seen == {key: list(range(key, 30, 3)) for key in range(3)}

    run(scenario())


@pytest.mark.promise("queues-8")
@pytest.mark.parametrize(
    ("key", "checksum"),
    [
        ("123456789", 0xE3069283),
        ("", 0x00000000),
        ("a", 0xC1D04330),
        ("order-4711", 0x45536987),
        ("ö", 0x55E67697),
    ],
)
def test_the_partition_of_a_key_is_its_crc32c(broker: BrokerProcess, key: str, checksum: int) -> None:
    """By vectors: the first is the check value of RFC 3720's polynomial."""

    async def scenario() -> None:
        topic = "$queue/vectors"
        client = await worker(broker, "vectors-1")
        await client.consumes(topic)
        await client.enqueues(topic, b"m", partition_key=key)
        taken = await client.next()
        assert taken.partition == checksum % 10
        await client.acks(taken)

    run(scenario())


@pytest.mark.promise("queues-8")
def test_messages_without_a_key_are_spread_evenly(broker: BrokerProcess) -> None:
    count = 10_000

    async def scenario() -> None:
        topic = "$queue/spread"
        client = await worker(broker, "spread-1")
        await client.consumes(topic, ack_mode="puback", prefetch="1000")
        acked = 0
        for start in range(0, count, 500):
            last = [client.next_id() for _ in range(500)]
            answer = client.expect(Puback, last[-1])
            for packet_id in last:
                client.send(Publish(topic, b"%d" % start, 1, packet_id))
            acked += (await answer).reason_code == 0
        taken = await client.take(count)
        spread = Counter(each.partition for each in taken)
        assert sorted(spread) == list(range(10)) and acked == 20
        assert all(0.08 * count <= found <= 0.12 * count for found in spread.values()), spread

    run(scenario())


@pytest.mark.promise("queues-4")
def test_retain_is_ignored_and_that_is_said(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/retained"
        client = await worker(broker, "retain-1")
        answer = await told(client, topic, b"kept?", retain=True)
        assert answer.reason_code == 0 and "retain" in said(answer)
        packet_id = client.next_id()
        received = client.expect(Pubrec, packet_id)
        client.send(Publish(topic, b"kept?", 2, packet_id, True))
        assert "retain" in said(await received)
        completed = client.expect(Pubcomp, packet_id)
        client.send_bytes(pubrel(packet_id))
        await completed
        assert said(await told(client, topic, b"plain")) == ""
        old = await worker(broker, "retain-2", version=V311)
        assert await old.publish(topic, b"kept?", qos=1, retain=True) == 0
        await client.consumes(topic)
        taken = await client.take(4)
        assert not any(each.packet.retain for each in taken)
        await client.acks(*taken)
        late = await worker(broker, "late-1")
        await late.consumes(topic, start_position="latest")
        await late.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-4")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_enqueues(broker: BrokerProcess, version: ProtocolVersion, qos: int) -> None:
    async def scenario() -> None:
        topic = f"$queue/wills/{int(version)}/{qos}"
        taker = await worker(broker, f"heir{version}{qos}")
        await taker.consumes(topic)
        client = Worker(f"w{version}{qos}", version=version)
        await client.connect(broker.port, will=Will(topic, b"the end", qos, True))
        client.abort()
        taken = await taker.next()
        assert (taken.payload, taken.packet.retain) == (b"the end", False)
        client = Worker(f"w{version}{qos}", version=version)
        await client.connect(broker.port, will=Will(topic, b"never", qos, False))
        client.close()
        await client.ended
        await taker.gets_nothing()

    run(scenario())


BAD_NAMES = [
    "",
    "a//b",
    "/a",
    "a/",
    "a/$b",
    "$b",
    "a/$ack/b",
    "$ack",
    "dlq/a",
    "dlq/dlq/a",
    "n" * 256,
    "ö" * 128,
]


@pytest.mark.promise("queues-6")
@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_with_a_reason(broker: BrokerProcess, name: str) -> None:
    async def scenario() -> None:
        topic = f"$queue/{name}"
        client = await worker(broker, "names-1")
        answer = await told(client, topic, b"m")
        assert answer.reason_code == 0x90 and said(answer)
        assert await client.publish(topic, b"m", qos=2) == 0x90
        await client.publish(topic, b"m")
        await client.ping()
        old = await worker(broker, "names-2", version=V311)
        await old.publish(topic, b"m")
        await old.ping()
        with pytest.raises(ConnectionEnded):
            await old.publish(topic, b"m", qos=1)
        heir = Worker("names-3")
        connack: Connack = await heir.connect(broker.port, will=Will(topic, b"m", 1, False))
        assert connack.reason_code == 0x90

    run(scenario())


@pytest.mark.promise("queues-6")
def test_a_name_may_have_255_bytes_and_a_will_neither_settles_nor_configures(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        client = await worker(broker, "longest-1")
        for name in ("n" * 255, "ö" * 127 + "n"):
            assert (await told(client, f"$queue/{name}", b"m")).reason_code == 0
        for topic in ("$queue/one/$ack", "$admin/queue/one/config"):
            heir = Worker("longest-2")
            connack = await heir.connect(broker.port, will=Will(topic, b"", 1, False))
            assert connack.reason_code == 0x90

    run(scenario())


@pytest.mark.promise("queues-7")
def test_ordinary_subscriptions_see_nothing_of_queues(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        plain = await worker(broker, "plain-1")
        filters = ("#", "+/apart", "+/#", "$share/g/#", "apart", "queue/apart")
        assert await plain.subscribe(*(Subscription(each, 1) for each in filters)) == (1,) * len(filters)
        client = await worker(broker, "plain-2")
        await client.enqueues("$queue/apart", b"for the queue", qos=1)
        await client.publish("apart", b"retained", qos=1, retain=True)
        first = await plain.next()
        assert (first.payload, first.packet.topic) == (b"retained", "apart")
        assert all(each.packet.topic == "apart" for each in await plain.take(1))
        await plain.gets_nothing()
        await client.publish("apart", b"", qos=1, retain=True)

    run(scenario())


@pytest.mark.promise("queues-2")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_repeated_qos_2_message_is_one_message(broker: BrokerProcess, version: ProtocolVersion) -> None:
    """Over the end of the connection, too."""

    async def scenario() -> None:
        topic = f"$queue/twice/{int(version)}"
        client = await worker(
            broker, f"twice{version}", version=version, clean_start=version is V5, expiry_s=60
        )
        for dup in (False, True):
            received = client.expect(Pubrec, 7)
            client.send(Publish(topic, b"once", 2, 7, False, dup))
            assert (await received).reason_code == 0
        client.abort()
        await client.ended
        client = await worker(broker, f"twice{version}", version=version, clean_start=False, expiry_s=60)
        received = client.expect(Pubrec, 7)
        client.send(Publish(topic, b"once", 2, 7, False, True))
        await received
        completed = client.expect(Pubcomp, 7)
        client.send_bytes(pubrel(7))
        await completed
        received = client.expect(Pubrec, 7)
        client.send(Publish(topic, b"another", 2, 7))
        await received
        taker = await worker(broker, f"t-twice{version}")
        await taker.consumes(topic)
        assert {each.payload for each in await taker.take(2)} == {b"once", b"another"}
        await taker.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-1")
def test_a_topic_alias_stands_for_a_queue(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        client = await worker(broker, "alias-1")
        await client.consumes("$queue/alias")
        for topic in ("$queue/alias", "", ""):
            packet_id = client.next_id()
            answer = client.expect(Puback, packet_id)
            client.send(Publish(topic, b"m", 1, packet_id, False, False, Properties(topic_alias=3)))
            assert (await answer).reason_code == 0
        for taken in await client.take(3):
            assert taken.packet.topic == "$queue/alias"
            assert taken.packet.properties is not None and taken.packet.properties.topic_alias is None

    run(scenario())


@pytest.mark.promise("queues-11")
def test_a_repeat_of_a_dedup_id_is_acknowledged_and_not_enqueued(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/dedup"
        client, other = await worker(broker, "dedup-1"), await worker(broker, "dedup-2")
        await client.consumes(topic)
        began = time.monotonic()
        first = client.expect(Puback, 101)
        repeat = client.expect(Puback, 102)
        for packet_id in (101, 102):  # in one tick, most likely
            given = Properties(user_properties=(("dedup-id", "order 1"),))
            client.send(Publish(topic, b"first", 1, packet_id, False, False, given))
        assert said(await first) == ""
        answer = await repeat
        if time.monotonic() - began < 2:
            assert answer.reason_code == 0 and "dedup-id" in said(answer)
            assert (
                await other.publish(
                    topic, b"again", qos=2, properties=Properties(user_properties=(("dedup-id", "order 1"),))
                )
                == 0
            )
        await other.enqueues(topic, b"other", dedup_id="order 2")
        assert {each.payload for each in await client.take(2)} == {b"first", b"other"}

        async def is_taken() -> bool:
            return said(await told(other, topic, b"anew", dedup_id="order 1")) == ""

        while not await is_taken():
            assert time.monotonic() - began < 60
        assert time.monotonic() - began > 2, "the window is two seconds"
        assert (await client.next()).payload == b"anew"

    run(scenario())


@pytest.mark.promise("queues-12")
def test_a_delayed_message_is_seen_when_it_is_due(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/delayed"
        client = await worker(broker, "delayed-1")
        await client.consumes(topic)
        began = time.monotonic()
        deliver_at = str(time.time_ns() // 1_000_000 + 2_000)
        await asyncio.gather(  # all at once, so that none is due before the next one is there
            client.enqueues(topic, b"at", deliver_at=deliver_at),
            client.enqueues(topic, b"300 ms", delay="300ms"),
            client.enqueues(topic, b"half a second", delay="0.5"),
            client.enqueues(topic, b"now"),
            client.enqueues(topic, b"past", deliver_at="2001-01-01T00:00:00Z"),
        )
        seen = {}
        for _ in range(5):
            taken = await client.next()
            seen[taken.payload] = time.monotonic() - began
        assert list(seen)[2:] == [b"300 ms", b"half a second", b"at"]
        assert seen[b"300 ms"] >= 0.3 and seen[b"half a second"] >= 0.5 and seen[b"at"] >= 1.99
        for asked in (
            told(client, topic, b"never", delay="soon"),
            told(client, topic, b"never", deliver_at="tomorrow"),
            told(client, topic, b"never", delay="1", deliver_at=deliver_at),
        ):
            answer = await asked
            assert answer.reason_code == 0x83 and "del" in said(answer)
        await client.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-31")
def test_a_message_that_is_too_large_is_refused(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/small"
        client = await worker(broker, "large-1")
        assert (await told(client, topic, b"x" * 16)).reason_code == 0
        answer = await told(client, topic, b"x" * 17)
        assert answer.reason_code == 0x97 and "17 bytes" in said(answer) and "16" in said(answer)
        assert await client.publish(topic, b"x" * 17, qos=2) == 0x97
        await client.publish(topic, b"x" * 17)
        await client.ping()
        for qos in (0, 1, 2):
            old = await worker(broker, f"large-{qos + 2}", version=V311)
            packet_id = 1 if qos else 0
            old.send(Publish(topic, b"x" * 17, qos, packet_id))
            await asyncio.wait_for(old.ended, 30)
            assert not [each for each in old.received if isinstance(each, Puback | Pubrec)]
        await client.consumes(topic)
        assert (await client.next()).payload == b"x" * 16
        await client.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-31")
@pytest.mark.parametrize("version", [V5, V311])
def test_a_message_may_be_as_large_as_its_queue_takes(
    broker: BrokerProcess, version: ProtocolVersion
) -> None:
    async def scenario() -> None:
        topic = f"$queue/as-large/{version}/{'t' * 200}"
        client = await worker(broker, f"aslarge{version}-1", version=version)
        reader = await worker(broker, f"aslarge{version}-2")
        await reader.consumes(topic)
        if version is V5:
            await client.enqueues(topic, bytes(1024 * 1024), note="n" * 50_000)
        else:
            await client.enqueues(topic, bytes(1024 * 1024))
        taken = await reader.next()
        assert len(taken.payload) == 1024 * 1024
        await reader.acks(taken)
        if version is V5:
            answer = await told(client, topic, bytes(1024 * 1024 + 1))
            assert answer.reason_code == 0x97 and "1048577 bytes" in said(answer)

    run(scenario())


@pytest.mark.promise("queues-31")
def test_a_full_queue_refuses(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/full"
        client = await worker(broker, "full-1")
        await client.enqueues(topic, b"1", b"2")
        answer = await told(client, topic, b"3")
        assert answer.reason_code == 0x97 and "limit is 2" in said(answer)
        assert await client.publish(topic, b"3", qos=2) == 0x97
        old = await worker(broker, "full-2", version=V311)
        with pytest.raises(ConnectionEnded):
            await old.publish(topic, b"3", qos=1)
        assert not [each for each in old.received if isinstance(each, Puback)]
        await client.consumes(topic)
        taken = await client.take(2)
        await client.acks(taken[0])
        await client.enqueues(topic, b"4")  # there is room again
        assert (await client.next()).payload == b"4"

    run(scenario())


@pytest.mark.promise("queues-31")
def test_what_a_full_queue_cannot_refuse_in_words_counts_there(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        client = await worker(broker, "full-0")
        topic = "$queue/full/nobody"
        await client.enqueues(topic, b"1", b"2")
        await client.publish(topic, b"3", qos=0)
        await client.publish(topic, b"4", qos=0)
        await client.ping()

    run(scenario())
    url = f"http://127.0.0.1:{broker.http_port}/api/v1/queues/full$nobody/stats"
    stats = httpx.get(url, timeout=30).json()
    assert (stats["messages"], stats["dropped"]) == (2, {"overflow": 2})


@pytest.mark.promise("queues-31")
def test_a_full_queue_may_drop_what_is_new(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/new"
        client = await worker(broker, "new-1")
        await client.enqueues(topic, b"1", b"2")
        answer = await told(client, topic, b"3")
        assert answer.reason_code == 0 and "full" in said(answer)
        old = await worker(broker, "new-2", version=V311)
        assert await old.publish(topic, b"4", qos=2) == 0
        await client.consumes(topic)
        assert {each.payload for each in await client.take(2)} == {b"1", b"2"}
        await client.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-31", "queues-34")
def test_a_full_queue_may_drop_its_head_into_the_dead_letters(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/head"
        client = await worker(broker, "head-1")
        await client.enqueues(topic, b"1", b"2", b"3", b"4")
        await client.consumes(topic)
        assert [each.payload for each in await client.take(2)] == [b"3", b"4"]
        await client.consumes("$queue/dlq/head")
        dead = await client.take(2)
        assert {each.payload for each in dead} == {b"1", b"2"}
        assert {each.properties["dlq-reason"] for each in dead} == {"overflow"}
        await client.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-17", "queues-2")
def test_what_was_acknowledged_outlives_the_end_of_the_publisher(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/left"
        client = await worker(broker, "left-1")
        await client.enqueues(topic, b"1", b"2", qos=2)
        client.abort()
        await client.ended
        taker = await worker(broker, "left-2")
        await taker.consumes(topic)
        assert {each.payload for each in await taker.take(2)} == {b"1", b"2"}

    run(scenario())
