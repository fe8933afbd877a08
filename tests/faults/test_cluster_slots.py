"""Several nodes that serve at once: clients connect to any of them, and see what they would see on one broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.faults.cluster import (
    SLOTS,
    WAIT_S,
    all_is_taken,
    asked,
    cluster_fleet,
    id_of,
    join_again,
    lose_one,
    nodes,
    started_fleet,
    tell_without_a_log,
)
from tests.faults.fleet import V5
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.forked_program import run_program
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.redis_cluster import RedisCluster
from tests.support.servers import on_servers
from tests.support.waiting import wait_for, wait_until

from embermq.cli.cluster import HEADINGS
from embermq.formats.redis_layout import client_keys, key_prefix
from embermq.mqtt.wire.packets import Puback, Publish, Subscription
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.tools.certificates import Authority

KILLS = 2
MESSAGES = 250
RETAINED, ROUNDS = 200, 4
"""Messages that are retained at a time, and how often."""


def arrived(client: MqttClient, count: int) -> bool:
    return sum(message.qos > 0 for message in client.messages) >= count


async def find_what_is_retained(found: list[BrokerProcess]) -> None:
    """What has been acknowledged on one node is there for who subscribes on another one, as a retained message."""
    publishers = [MqttClient(id_of(home, "retains")) for home in range(SLOTS)]
    readers = [MqttClient(id_of(home, "looks")) for home in range(SLOTS)]
    for home in range(SLOTS):
        await publishers[home].connect(found[home].port)
        await readers[home].connect(found[home].port)
    for number in range(ROUNDS):
        home, topics = number % SLOTS, [f"kept/{number}/{each}" for each in range(RETAINED)]
        publisher, reader = publishers[home], readers[1 - home]
        answer = publisher.expect(Puback, RETAINED)
        for packet_id, topic in enumerate(topics, 1):
            publisher.send(Publish(topic, b"x", 1, packet_id, True))
        await answer
        reader.messages.clear()
        await reader.subscribe(Subscription(topics[-1], 1))
        await wait_for(partial(arrived, reader, 1), WAIT_S, topics[-1])
        assert reader.messages[0].retain, "it came as a new one"


def operate(node: BrokerProcess, *words: str) -> tuple[str, str]:
    """What a command tells that asks this node, and what it warns of."""
    done = run_program(*words, "--data-dir", node.data_dir, timeout_s=WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


async def look_at_clients(found: list[BrokerProcess], clients: list[MqttClient]) -> None:
    """An operator sees and ends clients of all slots at any node."""
    for node in found:
        told, warned = await asyncio.to_thread(operate, node, "sessions", "list", "--json")
        listed = [each["client_id"] for each in json.loads(told)]
        assert listed == sorted(client.client_id for client in clients)
        assert not warned
    for home in range(SLOTS):
        client = MqttClient(id_of(home, "ended"))
        await client.connect(found[home].port, expiry_s=3_600)
        other = found[1 - home]
        told, _ = await asyncio.to_thread(operate, other, "sessions", "show", client.client_id, "--json")
        assert json.loads(told)["session"]["connected"]
        await asyncio.to_thread(operate, other, "sessions", "disconnect", client.client_id)
        await asyncio.wait_for(client.ended, WAIT_S)
        await asyncio.to_thread(operate, other, "sessions", "delete", client.client_id, "--yes")
        for node in found:
            told, _ = await asyncio.to_thread(
                operate, node, "audit", "--json", "--operation", "DeleteSession"
            )
            (change,) = [
                each for each in json.loads(told) if each["object"] == {"client_id": client.client_id}
            ]
            assert (change["over"], change["outcome"]) == ("control" if node is other else "node", "done")


async def look_at_nodes(found: list[BrokerProcess]) -> None:
    """Each of them shows all, with what they have and whether they reach their stores. Each has two of the
    clients, one by the other node."""
    for node in found:
        shown: list[dict[str, Any]] = []

        def all_answer(node: BrokerProcess = node, shown: list[dict[str, Any]] = shown) -> bool:
            """And Kafka answers them, which may take a while on a busy machine."""
            shown[:] = json.loads(asked(node, "/api/v1/cluster")[1]).get("nodes", [])
            return bool(shown) and all(
                each["figures"] and set(each["figures"]["stores"].values()) == {"ok"} for each in shown
            )

        await wait_for(all_answer, WAIT_S, "all nodes answer and reach their stores")
        assert [each["about"]["node"] for each in shown] == ["one", "zero"]
        for each in shown:
            figures = each["figures"]
            assert (figures["connections"], figures["sessions"], figures["queues"]) == (2, 2, 0)
            assert figures["ready"]
            assert set(figures["stores"]) == {"log", "session_store", "other_slots"}
        told, _ = await asyncio.to_thread(operate, node, "cluster", "status")
        assert told.splitlines()[1].split() == list(HEADINGS)
        assert len(told.splitlines()) == 2 + len(found)


async def ban(found: list[BrokerProcess]) -> None:
    """What one node bans is sent away by all, and comes in nowhere until another one lifts the ban."""
    clients = [MqttClient(id_of(home, "banned")) for home in range(SLOTS)]
    for home, client in enumerate(clients):
        await client.connect(found[1 - home].port)
        told, _ = await asyncio.to_thread(operate, found[0], "bans", "add", "client_id", client.client_id)
        assert f"sent away: {1 - home}" in told, "it says how many of this node's"
        await asyncio.wait_for(client.ended, WAIT_S)
        assert client.disconnect_received is not None
        assert client.disconnect_received.reason_code == ReasonCode.ADMINISTRATIVE_ACTION

    async def enters(home: int, node: BrokerProcess) -> bool:
        again = MqttClient(clients[home].client_id)
        code = (await again.connect(node.port)).reason_code
        again.close()
        assert code in {ReasonCode.SUCCESS, ReasonCode.BANNED}
        return code == ReasonCode.SUCCESS

    for home, client in enumerate(clients):
        assert not [node for node in found if await enters(home, node)]
        await asyncio.to_thread(operate, found[1], "bans", "remove", "client_id", client.client_id)
        for node in found:
            while not await enters(home, node):
                pass


async def read_certificates_again(node: BrokerProcess) -> None:
    before = node.output_size()
    os.kill(node.pid, signal.SIGHUP)
    await wait_for(lambda: b"certificates read again" in node.output_from(before), WAIT_S, node.output())


@pytest.mark.promise("cluster-3", "cluster-5", "cluster-15", "cluster-22", "cluster-23")
def test_a_client_may_connect_to_any_node_and_reaches_all_clients(
    etcd: EtcdServer, kafka: KafkaServer, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    """What nodes say to one another is encrypted; both slots have their keys at all masters of a Redis Cluster."""

    async def scenario(found: list[BrokerProcess]) -> None:
        for each in found:
            await read_certificates_again(each)
        clients = []
        for home in range(SLOTS):
            for by in range(SLOTS):
                client = MqttClient(id_of(home, f"s{by}"))
                await client.connect(found[by].port)
                await client.subscribe(Subscription("a/#", 2))
                clients.append(client)
        for qos in (1, 2):
            for number, client in enumerate(clients):
                await client.publish(f"a/{qos}/{number}", b"x", qos=qos)
        await tell_without_a_log(clients)
        await look_at_clients(found, clients)
        await look_at_nodes(found)
        await ban(found)
        await find_what_is_retained(found)
        for client in clients:
            await wait_for(partial(arrived, client, 2 * len(clients)), WAIT_S, client.client_id)
            topics = [message.topic for message in client.messages if message.qos]
            assert sorted(topics) == sorted(f"a/{qos}/{n}" for qos in (1, 2) for n in range(len(clients)))
        for each in found:
            status, told = asked(each, "/ready")
            assert status == 200
            assert json.loads(told)["parts"]["other_slots"] == "ok"
        assert await asyncio.to_thread(found[0].stop) == 0
        *told_so, last = clients
        for client in told_so:  # by the node of its slot, whether it has come there or not
            await asyncio.wait_for(client.ended, WAIT_S)
            assert client.disconnect_received is not None, client.client_id
            assert client.disconnect_received.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        assert not last.ended.done()

    servers = on_servers(kafka, redis_cluster)
    with nodes(etcd, servers, tmp_path, tls=Authority(tmp_path / "authority")) as found:
        run(scenario(found))
        for master in redis_cluster.masters():
            for pattern in ("embermq:floor:*", "slot-1:embermq:floor:*", "t:r:*", "slot-1:t:r:*"):
                assert master.ask("KEYS", pattern), pattern
        _, warned = operate(found[1], "sessions", "list")
        assert "what is of slot 0" in warned
        assert found[1].stop() == 0
        assert not any("Traceback" in each.output() for each in found)


@pytest.mark.promise("cluster-7", "cluster-8", "cluster-16")
@pytest.mark.long_rounds
def test_nothing_is_lost_or_doubled_when_nodes_that_serve_are_killed_or_stand_still(
    seed: int, etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    random = Random(seed)

    async def scenario(found: list[BrokerProcess]) -> None:
        fleet = await started_fleet(found, random, restless=3)
        for _ in range(KILLS):
            fleet.allow(MESSAGES)
            await asyncio.sleep(random.uniform(0.02, 0.6))
            join_again(found, await lose_one(found, random))
            fleet.check()
        await all_is_taken(fleet)
        await fleet.drain()
        await fleet.stop()
        assert fleet.acknowledged() == len(fleet.publishers) * KILLS * MESSAGES
        fleet.judge()

    with nodes(etcd, servers, tmp_path, spare=True) as found:
        run(scenario(found), 600)


@pytest.mark.promise("cluster-7", "cluster-8")
@pytest.mark.in_faults
@pytest.mark.long_rounds
def test_nothing_is_lost_when_masters_of_the_redis_cluster_are_killed(
    seed: int, etcd: EtcdServer, kafka: KafkaServer, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    """Each master has keys of both slots: the nodes of both wait for the replica that takes its place."""
    random = Random(seed)

    async def scenario(found: list[BrokerProcess]) -> None:
        fleet = cluster_fleet(found, random)
        fleet.subscriber("steady-5", V5)
        for number in range(4):
            fleet.subscriber(f"restless-{number}", V5, restless_s=0.3)
        await fleet.start_subscribers()
        fleet.start_publishers()
        for home in range(SLOTS):
            fleet.allow(MESSAGES)
            await asyncio.sleep(random.uniform(0.02, 0.6))
            key = client_keys(random.choice(fleet.subscribers).client_id, key_prefix(home)).session
            dead, replica = await asyncio.to_thread(redis_cluster.kill_master, key)
            await asyncio.to_thread(redis_cluster.wait_promoted, replica)
            await asyncio.to_thread(dead.start)
            await asyncio.to_thread(redis_cluster.heal)
            fleet.check()
        await all_is_taken(fleet)
        await fleet.drain()
        await fleet.stop()
        assert fleet.acknowledged() == len(fleet.publishers) * SLOTS * MESSAGES
        fleet.judge()

    servers = on_servers(kafka, redis_cluster) | {"redis.wait_replicas": 1}
    with nodes(etcd, servers, tmp_path) as found:
        run(scenario(found), 600)
        for each in found:
            assert each.stop() == 0
            assert "Traceback" not in each.output()


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-13", "cluster-21")
def test_a_trace_follows_a_message_into_the_log_of_the_other_slot(
    etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """Which is looked into first, and has the copy."""

    async def scenario(found: list[BrokerProcess]) -> None:
        reader, publisher = MqttClient(id_of(0, "reads")), MqttClient(id_of(1, "car"))
        await reader.connect(found[0].port, clean_start=False, expiry_s=3_600)
        await reader.subscribe(Subscription("cars/#", 1))
        reader.abort()
        await publisher.connect(found[1].port)
        assert await publisher.publish("cars/0", b"x", qos=1) < 0x80

    def traced(node: BrokerProcess, slot: int | None = None) -> dict[str, Any]:
        given = [word for key, value in node.settings.items() for word in ("--set", f"{key}={value}")]
        words = ["trace", "cars/0", "--time", "2026-01-01", "--json"]
        of = [] if slot is None else ["--slot", str(slot)]
        done = run_program(*words, *of, "--data-dir", node.data_dir, *given)
        assert done.returncode == 0 or "no message of topic" in done.stderr, done.stderr
        return json.loads(done.stdout) if done.returncode == 0 else {}

    given = {"pipeline.queries": json.dumps(["dispatch"])}  # the command has no `--no-pipeline`
    with nodes(etcd, servers | given, tmp_path) as found:
        run(scenario(found))
        wait_until(lambda: bool(traced(found[1], 0)), WAIT_S, "the other slot has its copy", poll_s=0.5)
        first, second = traced(found[1], 1), traced(found[1], 0)
        assert (first["publisher"], first["copy_of"], first["sessions"]) == (id_of(1, "car"), "", [])
        assert second["copy_of"] == f"{first['position']} of slot 1"
        wait_until(lambda: is_stored(traced(found[1], 0)), WAIT_S, "it waits for the reader", poll_s=0.5)
        whole = traced(found[0])
        (copy,) = whole.pop("copies")
        assert (whole["slot"], copy["slot"], is_stored(copy)) == (1, 0, True)
        assert (whole["position"], copy["copy_of"]) == (first["position"], second["copy_of"])


def is_stored(traced: dict[str, Any]) -> bool:
    return [(each["to"], each["outcome"]) for each in traced["sessions"]] == [
        (id_of(0, "reads"), "waits, stored")
    ]
