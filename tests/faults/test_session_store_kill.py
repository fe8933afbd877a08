"""Session data in Redis, under load: kill -9 of the broker, of Redis, of both, of a cluster's master, and a Redis that
is away for a while. What was acknowledged arrives at everybody who had subscribed, QoS 2 once, in the order of its
topic, and no packet id is in use twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from tests.faults.fleet import V5, V311, Fleet
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_server import KafkaServer
from tests.support.metrics import metric
from tests.support.mqtt_client import run
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import Fsync, RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_for, wait_until

from embermq.formats.redis_layout import client_keys

TIMES = 2
"""How often something is killed in a round."""
MESSAGES = 250
"""Of each publisher between two of them."""
SETTINGS = {
    "device.queue_limit": 60_000,
    "redis.command_timeout_s": 1,
}
SLOW_DISK = [
    *("strace", "-D", "-f", "--seccomp-bpf", "-qqq", "-o", "/dev/null"),
    *("-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=5s", "-e", "signal=none"),
]
"""A sync takes five seconds."""
Trouble = Callable[[], Awaitable[None]]


def broker_on(
    kafka: KafkaServer, redis: RedisServer | RedisCluster, folder: Path, **settings: object
) -> BrokerProcess:
    return BrokerProcess(
        folder / "data",
        settings={**SETTINGS, **on_servers(kafka, redis), **settings},
        constants={"embermq.app.kafka_log.CONNECT_WAIT_S": 1},
    )


async def under_load(
    broker: BrokerProcess, random: Random, trouble: Trouble, messages: int = MESSAGES
) -> Fleet:
    """Messages all the time, `trouble` at random moments; then everybody gets what is owed, and is judged."""
    fleet = Fleet(broker.port, random, topics=5, window=50)
    fleet.subscriber("steady-3.1.1", V311)
    fleet.subscriber("slow-5", V5).slow_s = 0.2
    fleet.subscriber("restless-3.1.1", V311, restless_s=0.5)
    fleet.subscriber("restless-5", V5, restless_s=0.3)
    fleet.subscriber(
        "narrow-5", V5, restless_s=0.8, receive_maximum=20, topic_filter="load/V5/#"
    ).slow_s = 0.05
    await fleet.start_subscribers()
    fleet.start_publishers()
    for _ in range(TIMES):
        fleet.allow(messages)
        await asyncio.sleep(random.uniform(0.02, 0.6))
        await trouble()
        fleet.check()
    await wait_for(lambda: not any(each.allowance for each in fleet.publishers), 40, "everything is taken")
    await fleet.drain()
    await fleet.stop()
    assert fleet.acknowledged() == len(fleet.publishers) * TIMES * messages
    fleet.judge()
    return fleet


def nothing_is_left(broker: BrokerProcess, nodes: Sequence[RedisServer], fleet: Fleet) -> None:
    """All was acknowledged by its receivers, so nothing of it is stored; and no write was refused."""
    sessions = [client_keys(subscriber.client_id, "") for subscriber in fleet.subscribers]

    def left() -> list[bytes]:
        return [
            name
            for node in nodes
            for keys in sessions
            for pattern in (keys.messages, f"{keys.message}*", keys.sent, keys.released)
            for name in node.ask("KEYS", pattern)
        ]

    wait_until(lambda: metric(broker, "session_store_waiting_ticks") == 0, 30, "all is stored")
    wait_until(lambda: not left(), 30, "what is acknowledged is not stored any more")
    assert metric(broker, "session_store_fenced_total") == 0
    assert metric(broker, "session_store_refused_total") == 0
    assert "Traceback" not in broker.output()


def judge_under_load(
    broker: BrokerProcess,
    nodes: Sequence[RedisServer],
    random: Random,
    trouble: Trouble,
    *,
    messages: int = MESSAGES,
) -> None:
    fleets: list[Fleet] = []

    async def scenario() -> None:
        fleets.append(await under_load(broker, random, trouble, messages))

    run(scenario())
    nothing_is_left(broker, nodes, fleets[0])


@pytest.mark.in_faults
@pytest.mark.promise("device-1", "device-9", "device-11", "repositories-1")
def test_the_broker_is_killed(
    seed: int, kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    random = Random(seed)
    with broker_on(kafka, redis_server, tmp_path) as broker:

        async def trouble() -> None:
            broker.kill()
            while random.random() < 0.3:
                broker.launch()
                await asyncio.sleep(random.uniform(0.0, 0.4))
                broker.kill()
            await asyncio.to_thread(broker.start)

        judge_under_load(broker, [redis_server], random, trouble)


@pytest.mark.in_faults
@pytest.mark.promise("device-1", "device-9", "device-11", "repositories-1")
@pytest.mark.parametrize("appendfsync", ["always", "everysec"])
def test_redis_is_killed(seed: int, appendfsync: Fsync, kafka: KafkaServer, tmp_path: Path) -> None:
    random = Random(seed)
    with (
        RedisServer(tmp_path / "redis", appendfsync=appendfsync) as redis_server,
        broker_on(kafka, redis_server, tmp_path) as broker,
    ):

        async def trouble() -> None:
            redis_server.kill()
            await asyncio.sleep(random.choice((0.0, random.uniform(0, 0.5))))
            await asyncio.to_thread(redis_server.start)

        judge_under_load(broker, [redis_server], random, trouble)


@pytest.mark.in_faults
@pytest.mark.promise("device-1", "device-9", "device-11", "repositories-1")
@pytest.mark.long_rounds
def test_redis_is_killed_while_its_disk_is_busy(seed: int, kafka: KafkaServer, tmp_path: Path) -> None:
    """While a sync is under way, Redis keeps what it confirms in memory for two seconds; the broker may hear late."""
    random = Random(seed)
    with (
        RedisServer(tmp_path / "redis", wrapper=SLOW_DISK) as redis_server,
        broker_on(kafka, redis_server, tmp_path) as broker,
    ):

        async def trouble() -> None:
            await asyncio.sleep(random.uniform(1.0, 3.0))
            os.kill(broker.pid, signal.SIGSTOP)
            await asyncio.sleep(random.uniform(0.0, 2.5))
            redis_server.kill()
            os.kill(broker.pid, signal.SIGCONT)
            await asyncio.to_thread(redis_server.start)

        judge_under_load(broker, [redis_server], random, trouble, messages=1_000)


@pytest.mark.promise("device-1", "device-9", "device-11", "repositories-1")
def test_broker_and_redis_are_killed(
    seed: int, kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    random = Random(seed)
    with broker_on(kafka, redis_server, tmp_path) as broker:
        killed: list[BrokerProcess | RedisServer] = [redis_server, broker]

        async def trouble() -> None:
            killed[0].kill()
            longest_s = random.choice((0.05, 1.0))  # with Redis away for long, much is in the log alone
            await asyncio.sleep(random.uniform(longest_s / 2, longest_s))
            killed[1].kill()
            killed.reverse()
            await asyncio.to_thread(redis_server.start)
            await asyncio.to_thread(broker.start)

        judge_under_load(broker, [redis_server], random, trouble)


@pytest.mark.promise("device-1", "device-9", "device-11", "repositories-1")
def test_a_master_of_the_cluster_is_killed(
    seed: int, kafka: KafkaServer, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    """With one replica each, what is stored in the dead master's slots waits until it is back as a replica."""
    random = Random(seed)
    with broker_on(kafka, redis_cluster, tmp_path, **{"redis.wait_replicas": 1}) as broker:

        async def trouble() -> None:
            key = client_keys(random.choice(("slow-5", "restless-5", "restless-3.1.1")), "").session
            dead, replica = await asyncio.to_thread(redis_cluster.kill_master, key)
            await asyncio.to_thread(redis_cluster.wait_promoted, replica)
            await asyncio.sleep(random.uniform(0, 0.5))
            await asyncio.to_thread(dead.start)
            await asyncio.to_thread(redis_cluster.heal)

        judge_under_load(broker, redis_cluster.nodes, random, trouble)


@pytest.mark.promise("device-1", "device-9", "device-11", "repositories-1")
@pytest.mark.parametrize("way", [pytest.param("killed", marks=pytest.mark.in_faults), "stopped"])
def test_redis_is_away_for_seconds(
    seed: int, way: str, kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Publishers are answered meanwhile."""
    random = Random(seed)
    with broker_on(kafka, redis_server, tmp_path) as broker:

        async def trouble() -> None:
            if way == "killed":
                redis_server.kill()
            else:
                redis_server.pause()
            await asyncio.sleep(random.uniform(1.0, 3.0))
            await asyncio.to_thread(redis_server.heal)

        judge_under_load(broker, [redis_server], random, trouble)
