"""A Redis Cluster of which one master does not answer: kept sessions on the others are served as ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import DAY_S
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.redis_cluster import RedisCluster
from tests.support.servers import on_servers
from tests.support.waiting import wait_for

from embermq.formats.redis_layout import client_keys
from embermq.mqtt.wire.packets import Subscription

PATIENCE_S = 60
ROUNDS = 5


def named(cluster: RedisCluster, number: int) -> str:
    """A client id whose session is on that master."""
    master = cluster.masters()[number]
    names = (f"client-{index}" for index in range(1_000))
    return next(name for name in names if cluster.master_of(client_keys(name).session) is master)


async def enters(broker: BrokerProcess, client_id: str) -> MqttClient:
    client = MqttClient(client_id)
    await client.connect(broker.port, clean_start=False, expiry_s=DAY_S)
    return client


@pytest.mark.timeout(200)
def test_sessions_of_the_other_masters_do_not_wait(
    kafka: KafkaServer, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    cluster = redis_cluster
    away, there = named(cluster, 0), named(cluster, 1)
    settings = on_servers(kafka, cluster) | {"session_store.connect_wait_s": PATIENCE_S}

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

    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        run(scenario(broker), 180)
