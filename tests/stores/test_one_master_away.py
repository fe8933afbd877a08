"""A Redis Cluster of which one master does not answer: kept sessions on the others are served as ever."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import DAY_S
from tests.support.kafka_server import KafkaServer
from tests.support.metrics import metric
from tests.support.mqtt_client import MqttClient, run
from tests.support.queue_worker import worker
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_for, wait_until

from embermq.adapters.redis.floor_marks import mark_keys
from embermq.formats.redis_layout import client_keys
from embermq.formats.redis_queues import queue_keys
from embermq.mqtt.wire.packets import Subscription

PATIENCE_S = 60
PATIENT = {"embermq.app.kafka_log.CONNECT_WAIT_S": PATIENCE_S}
NARROW = {"embermq.durability.log_first.WAITING_BYTES_MAX": 1024 * 1024}
ROUNDS = 5
LARGE = bytes(300_000)
TOO_MANY = 4
"""Of them are more than may wait, and less than twice as much."""


def named(cluster: RedisCluster, number: int, kind: str = "client") -> str:
    """A client id whose session is on that master."""
    master = cluster.masters()[number]
    names = (f"{kind}-{index}" for index in range(1_000))
    return next(name for name in names if cluster.master_of(client_keys(name, "").session) is master)


def queue_on(cluster: RedisCluster, number: int) -> str:
    """The name of a queue on that master."""
    master = cluster.masters()[number]
    names = (f"queue-{index}" for index in range(1_000))
    return next(name for name in names if cluster.master_of(queue_keys(name, "").queue) is master)


async def enters(
    broker: BrokerProcess, client_id: str, *, clean_start: bool = False, acknowledges: bool = True
) -> MqttClient:
    client = MqttClient(client_id, acknowledges=acknowledges)
    await client.connect(broker.port, clean_start=clean_start, expiry_s=DAY_S)
    return client


def test_sessions_of_the_other_masters_do_not_wait(
    kafka: KafkaServer, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    cluster = redis_cluster
    away, there = named(cluster, 0), named(cluster, 1)
    settings = on_servers(kafka, cluster)

    async def scenario(broker: BrokerProcess) -> None:
        stuck = await enters(broker, away)
        await stuck.subscribe(Subscription("t/#", 2))
        master = cluster.masters()[0]
        cluster.set_full_coverage(wanted=False)
        cluster.replica_of(master).kill()
        master.pause()
        waiting = asyncio.ensure_future(stuck.subscribe(Subscription("more/#", 1)))
        for number in range(ROUNDS):
            client = await enters(broker, there)
            await client.subscribe(Subscription(f"t/{number}", 2))
            await client.publish(f"t/{number}", b"%d" % number, qos=2)
            await wait_for(lambda client=client, number=number: len(client.messages) > 0, PATIENCE_S)  # type: ignore[misc]
            assert client.messages[-1].payload == b"%d" % number
            await client.ping()
            client.close()
            await client.ended
        assert not waiting.done(), "what its session is promised is not stored"
        master.resume()
        await asyncio.wait_for(waiting, PATIENCE_S)
        await wait_for(lambda: len(stuck.messages) == ROUNDS, PATIENCE_S, "all messages come")
        assert [message.payload for message in stuck.messages] == [b"%d" % number for number in range(ROUNDS)]
        stuck.close()

    with BrokerProcess(tmp_path / "data", settings=settings, constants=PATIENT) as broker:
        run(scenario(broker), 180)


@pytest.mark.in_faults
def test_queues_of_the_other_masters_take_messages_when_too_much_waits(
    kafka: KafkaServer, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    """For the master that is away; what waits is deliveries of a session there."""
    cluster = redis_cluster
    settings = on_servers(kafka, cluster)
    away, there = (f"$queue/{queue_on(cluster, number)}" for number in (0, 1))

    async def scenario(broker: BrokerProcess) -> None:
        stuck = await enters(broker, named(cluster, 0), acknowledges=False)
        await stuck.subscribe(Subscription("t", 1))
        publisher = await worker(broker, "publisher")
        for topic in (away, there):
            await publisher.enqueues(topic, b"before")
        master = cluster.masters()[0]
        cluster.set_full_coverage(wanted=False)
        cluster.replica_of(master).kill()
        master.kill()
        for _ in range(TOO_MANY):
            await publisher.publish("t", LARGE, qos=1)
        taken = 1
        async with asyncio.timeout(PATIENCE_S):  # until it is known to be away
            while await publisher.publish(away, b"meanwhile", qos=1) == 0:
                taken += 1
                await publisher.enqueues(there, b"meanwhile")
                assert metric(broker, "session_store_waiting_bytes") > 0
        await publisher.enqueues(there, b"still")
        assert await publisher.publish(away, b"meanwhile", qos=1) == 0x97
        master.start()
        await wait_for(lambda: metric(broker, "session_store_waiting_ticks") == 0, PATIENCE_S)
        await publisher.enqueues(away, b"after")
        consumer = await worker(broker, "workers-1")
        for topic, last in ((away, b"after"), (there, b"still")):
            await consumer.consumes(topic)
            found = [each.payload for each in await consumer.take_and_ack(taken + 1)]
            assert sorted(found) == sorted([b"before", *[b"meanwhile"] * (taken - 1), last])
        for client in (stuck, publisher, consumer):
            client.close()

    with BrokerProcess(tmp_path / "data", settings=settings, constants=NARROW) as broker:
        run(scenario(broker), 180)


def _serves(cluster: RedisCluster, node: RedisServer) -> bool:
    return cluster.state(node) == "ok"


@pytest.mark.promise("device-9")
def test_what_an_ended_session_hands_on_is_nowhere_lost(
    kafka: KafkaServer, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    """It ends, and the broker dies while the server of those who get its messages does not answer."""
    cluster = redis_cluster
    keeper, leaver, other = named(cluster, 0), named(cluster, 1), named(cluster, 1, "other")
    shared = named(cluster, 0, "$share/g/t")
    payloads = {b"%d" % number for number in range(8)}
    settings = on_servers(kafka, cluster) | {"redis.settle_s": 0.2}

    def is_passed() -> bool:
        """All servers have said that they have all of it: a start does not read it again."""
        marks = (cluster.master_of(key).ask("GET", key) for key in mark_keys("", cluster=True))
        return all(int(mark or 0) > len(payloads) for mark in marks)

    async def before(broker: BrokerProcess) -> None:
        away = await enters(broker, keeper)
        await away.subscribe(Subscription(shared, 1))
        away.close()
        await away.ended
        member = await enters(broker, leaver, acknowledges=False)
        await member.subscribe(Subscription(shared, 1))
        publisher = await enters(broker, other)
        for payload in sorted(payloads):
            await publisher.publish(shared.removeprefix("$share/g/"), payload, qos=1)
        await wait_for(lambda: len(member.messages) == len(payloads), PATIENCE_S, "all of it comes")
        member.close()
        await member.ended
        while not is_passed():
            await publisher.publish("elsewhere", b"", qos=1)
        publisher.close()

    async def ends(broker: BrokerProcess) -> None:
        entering = asyncio.ensure_future(enters(broker, leaver, clean_start=True))
        client = await enters(broker, other)
        for number in range(ROUNDS):  # Redis does what was asked before this first
            await client.subscribe(Subscription(f"other/{number}", 1))
        entering.cancel()

    async def after(broker: BrokerProcess) -> None:
        members = [await enters(broker, name) for name in (keeper, leaver)]

        def arrived() -> bool:
            return {message.payload for member in members for message in member.messages} == payloads

        await wait_for(arrived, PATIENCE_S, "all of it comes, to one or the other")
        for member in members:
            member.close()

    with BrokerProcess(tmp_path / "data", settings=settings, constants=PATIENT) as broker:
        run(before(broker), 120)
        key = client_keys(leaver, "").messages
        assert cluster.master_of(key).ask("ZCARD", key)
        masters = cluster.masters()
        master = masters[0]
        cluster.set_full_coverage(wanted=False)
        cluster.replica_of(master).kill()
        master.pause()
        run(ends(broker), 120)
        broker.kill()
        master.kill()  # with what waits for it in its sockets
        master.start()
        for node in masters:
            wait_until(partial(_serves, cluster, node), PATIENCE_S, "the cluster serves again")
        broker.start()
        run(after(broker), 120)


@pytest.mark.in_faults
def test_a_start_without_a_master_says_which_and_succeeds_when_it_is_back(
    kafka: KafkaServer, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    cluster = redis_cluster
    master = cluster.masters()[2]
    replica = cluster.replica_of(master)
    slots = next(node.slots for node in cluster.view(master) if node.port == master.port)
    ranges = ", ".join(f"{low}-{high}" for low, high in slots)
    with BrokerProcess(tmp_path / "data", settings=on_servers(kafka, cluster)) as broker:
        broker.stop()
        cluster.set_full_coverage(wanted=False)
        replica.pause()  # no failover
        master.kill()
        refused = _refusal(broker)
        assert (
            f"the master 127.0.0.1:{master.port} (slots {ranges}) does not answer: bring it back" in refused
        )
        assert "no replica of it answers" in refused
        master.start()
        replica.resume()
        for node in cluster.masters():
            wait_until(partial(_serves, cluster, node), PATIENCE_S, "the cluster serves again")
        broker.start()


def _refusal(broker: BrokerProcess) -> str:
    """The last line of a start that comes to nothing."""
    with pytest.raises(AssertionError, match="the broker ended with 1"):
        broker.start()
    return broker.output().splitlines()[-1]
