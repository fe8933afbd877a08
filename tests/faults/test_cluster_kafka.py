"""A broker of Kafka is killed and comes back, under load of a cluster with two nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from tests.faults.cluster import SLOTS, all_is_taken, nodes, started_fleet
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.kafka_server import KafkaCluster
from tests.support.mqtt_client import run
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers

from embermq.adapters.kafka.log_topic import message_topic
from embermq.app.slots import slot_prefix

MESSAGES = 150
"""For each kill, from each publisher."""


@pytest.mark.promise("cluster-7", "cluster-8")
@pytest.mark.in_faults
@pytest.mark.long_rounds
def test_nothing_is_lost_or_doubled_when_brokers_of_kafka_are_killed(
    seed: int, etcd: EtcdServer, kafka_cluster: KafkaCluster, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The leader of each slot's log in turn; no node of the cluster ends for it."""
    random = Random(seed)
    prefix = kafka_cluster.prefix()

    async def scenario(found: list[BrokerProcess]) -> None:
        fleet = await started_fleet(found, random)
        for slot in range(SLOTS):
            fleet.allow(MESSAGES)
            await asyncio.sleep(random.uniform(0.02, 0.6))
            leader = await asyncio.to_thread(kafka_cluster.leader, message_topic(slot_prefix(prefix, slot)))
            await asyncio.to_thread(leader.kill)
            fleet.allow(MESSAGES)
            await all_is_taken(fleet)
            await asyncio.to_thread(kafka_cluster.heal)
            fleet.check()
        await fleet.drain()
        await fleet.stop()
        assert fleet.acknowledged() == len(fleet.publishers) * SLOTS * 2 * MESSAGES
        fleet.judge()

    with nodes(etcd, on_servers(kafka_cluster, redis_server, prefix), tmp_path) as found:
        run(scenario(found), 600)
        for each in found:
            assert each.stop() == 0
            assert "Traceback" not in each.output()
