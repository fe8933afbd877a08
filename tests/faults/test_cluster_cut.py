"""Two nodes of a cluster do not reach one another for a while, under load: both reach etcd, Kafka and Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
from tests.faults.cluster import SLOTS, WAIT_S, id_of, node, tell_without_a_log
from tests.faults.fleet import V5, V311, Fleet
from tests.faults.traffic import Place
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.metrics import metric, metrics
from tests.support.mqtt_client import MqttClient, run
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_for

from embermq.cluster.slots import slot_of
from embermq.mqtt.wire.packets import Subscription
from embermq.mqtt.wire.reason_codes import ReasonCode

MESSAGES = 100
"""At a time, from each publisher."""
CUTS = 3
"""Short ones, in the flow."""


@contextmanager
def nodes_over_proxies(
    etcd: EtcdServer, servers: dict[str, object], folder: Path
) -> Iterator[tuple[list[BrokerProcess], list[TcpProxy]]]:
    """One node for each slot, and the way by which the other one reaches it."""
    found = [node(etcd, servers, folder, name) for name in ("zero", "one")]
    with ExitStack() as started:
        ways = []
        for each in found:
            port = int(str(each.settings["cluster.listen"]).rpartition(":")[2])
            ways.append(started.enter_context(TcpProxy(port)))
            each.settings["cluster.advertise"] = f"127.0.0.1:{ways[-1].port}"
            started.callback(each.close)
            each.start()
        yield found, ways


def know(found: list[BrokerProcess], *, are_connected: bool) -> bool:
    """Whether each node's metrics say of the other's slot that there is a connection, or none."""
    return all(
        f'\nembermq_cluster_peer_connected{{slot="{1 - home}"}} {float(are_connected)}\n' in metrics(each)
        for home, each in enumerate(found)
    )


async def clients_of_each(found: list[BrokerProcess], name: str) -> list[MqttClient]:
    """One of each slot, connected to its node."""
    clients = [MqttClient(id_of(home, name)) for home in range(SLOTS)]
    for client, each in zip(clients, found, strict=True):
        await client.connect(each.port)
        await client.subscribe(Subscription("a/#", 0))
    return clients


async def enter_by_the_other(found: list[BrokerProcess], name: str) -> list[int]:
    """The reason codes of clients that come to a node which has to pass them on."""
    codes = []
    for home in range(SLOTS):
        client = MqttClient(id_of(home, name))
        codes.append((await client.connect(found[1 - home].port)).reason_code)
        client.abort()
    return codes


@pytest.mark.promise("cluster-8", "cluster-18")
@pytest.mark.long_rounds
def test_nodes_that_do_not_reach_one_another_read_the_log(
    seed: int, etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """All of QoS 1 and 2 goes on meanwhile, by the log, and so do all clients at the node of their slot."""
    random = Random(seed)

    async def scenario(found: list[BrokerProcess], ways: list[TcpProxy]) -> None:
        fleet = Fleet(found[0].port, random, topics=5, window=50)
        for home in range(SLOTS):
            fleet.subscriber(id_of(home, "steady"), V5)
            fleet.subscriber(id_of(home, "older"), V311)
            fleet.subscriber(id_of(home, "restless"), V5, restless_s=0.3)
        for one in fleet.clients:
            one.place = Place(found[slot_of(one.client_id, SLOTS)].port)
        homes = {slot_of(one.client_id, SLOTS) for one in fleet.publishers}
        assert homes == set(range(SLOTS)), "both nodes have publishers"

        def all_came() -> bool:
            fleet.check()
            done = fleet.acknowledged()
            return done == allowed and all(len(each.seen) == done for each in fleet.subscribers)

        await fleet.start_subscribers()
        near = await clients_of_each(found, "near")
        await tell_without_a_log(near)
        fleet.start_publishers()
        allowed = len(fleet.publishers) * MESSAGES
        fleet.allow(MESSAGES)
        await wait_for(lambda: fleet.acknowledged() > allowed / 4, WAIT_S, "the load has begun")
        for way in ways:
            way.cut(refuse=True)
        await wait_for(partial(know, found, are_connected=False), WAIT_S, "the metrics name the pair")
        copied = [await asyncio.to_thread(metric, each, "cluster_copied") for each in found]
        fleet.allow(MESSAGES)
        allowed += len(fleet.publishers) * MESSAGES
        for client in near:  # its own node answers it, whatever the other one does
            assert await client.publish("b", b"x", qos=1) < 0x80
            own = MqttClient(client.client_id + "x")
            await own.connect(found[slot_of(own.client_id, SLOTS)].port)
            own.close()
        assert await enter_by_the_other(found, "far") == [ReasonCode.SERVER_UNAVAILABLE] * SLOTS
        await wait_for(all_came, WAIT_S, "all comes while they do not reach one another")
        for each, before in zip(found, copied, strict=True):
            assert await asyncio.to_thread(metric, each, "cluster_copied") > before
        assert know(found, are_connected=False)
        for way in ways:
            way.allow()
        await wait_for(partial(know, found, are_connected=True), WAIT_S, "they reach one another")
        assert await enter_by_the_other(found, "far") == [ReasonCode.SUCCESS] * SLOTS
        for client in near:
            client.messages.clear()
        await tell_without_a_log(near)
        for _ in range(CUTS):
            fleet.allow(MESSAGES)
            allowed += len(fleet.publishers) * MESSAGES
            await asyncio.sleep(random.uniform(0.02, 0.3))
            for way in random.sample(ways, random.randint(1, SLOTS)):
                way.cut()
        await wait_for(all_came, WAIT_S, "all comes after the cuts")
        await fleet.drain()
        await fleet.stop()
        assert fleet.acknowledged() == allowed
        fleet.judge()

    with nodes_over_proxies(etcd, servers, tmp_path) as (found, ways):
        run(scenario(found, ways), 600)
        for each in found:
            assert each.stop() == 0
            assert "Traceback" not in each.output()
