"""The link on a Redis Cluster: nodes die, replicas take over, slots move, and each client's order stays."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.support.redis_asking import Asking, linked, on_the_loop
from tests.support.redis_cluster import NODE_TIMEOUT_MS, RedisCluster
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for

from embermq.adapters.redis import channel
from embermq.adapters.redis.address import RedisSettings

KEYS = 60
BUSY = RedisSettings(command_timeout_s=1.0)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for as long as in earnest."""
    monkeypatch.setattr(channel, "BREAKER_FAILURES", 3)
    monkeypatch.setattr(channel, "BREAKER_PAUSE_S", 0.2)
    monkeypatch.setattr(channel, "WAIT_TIMEOUT_MS", 300)


def lists(cluster: RedisCluster, asking: Asking) -> dict[str, list[bytes]]:
    """What all masters together have."""
    return {key: cluster.master_of(key).ask("LRANGE", key, 0, -1) for key in asking.keys}


def other_master(cluster: RedisCluster, than: RedisServer) -> RedisServer:
    return next(node for node in cluster.masters() if node is not than)


@on_the_loop
async def test_each_client_is_asked_at_its_node(redis_cluster: RedisCluster) -> None:
    async with linked(redis_cluster.url) as link:
        asking = Asking(link, KEYS)
        asking.append(each=50)
        await asking.all_answered()
        assert link.statistics().retries == 0
        assert not link.failing
    asking.assert_done(lists(redis_cluster, asking))


@on_the_loop
async def test_nothing_acknowledged_is_lost_with_a_master_when_a_replica_had_to_have_it(
    redis_cluster: RedisCluster,
) -> None:
    settings = RedisSettings(command_timeout_s=1.0, wait_replicas=1)
    async with linked(redis_cluster.url, settings) as link:
        asking = Asking(link, KEYS)
        replica = None
        for number in range(300):
            asking.append()
            await asyncio.sleep(0.003)
            if number == 100:
                _, replica = redis_cluster.kill_master(asking.keys[0])
        assert replica is not None
        await asyncio.to_thread(redis_cluster.wait_promoted, replica)
        await wait_for(
            lambda: "replicas have what was written" in link.failing, what="no replica is left there"
        )
        await asyncio.to_thread(redis_cluster.heal)
        await asking.all_answered()
        await wait_for(lambda: not link.failing)
    asking.assert_done(lists(redis_cluster, asking))


@on_the_loop
async def test_a_master_that_is_killed_holds_up_its_own_clients_alone(redis_cluster: RedisCluster) -> None:
    redis_cluster.set_full_coverage(wanted=False)
    async with linked(redis_cluster.url, BUSY) as link:
        asking = Asking(link, KEYS)
        asking.append()
        await asking.all_answered()
        killed, replica = redis_cluster.kill_master(asking.keys[0])
        killed_s = time.monotonic()
        theirs = [key for key in asking.keys if redis_cluster.slot_of(key) not in _slots_of(redis_cluster)]
        await wait_for(lambda: link.is_away(asking.keys[0]))
        assert str(killed.port) in link.failing
        asking.append()
        others = [key for key in asking.keys if key not in theirs]
        await wait_for(lambda: all(len(asking.answers[key]) == 2 for key in others))
        assert not any(link.is_away(key) for key in others)
        if time.monotonic() - killed_s < NODE_TIMEOUT_MS / 1000:  # later its replica may be master
            assert asking.waiting == len(theirs)
        await asyncio.to_thread(redis_cluster.wait_promoted, replica)
        await asking.all_answered()
        await wait_for(lambda: not link.failing)
    assert asking.in_order


def _slots_of(cluster: RedisCluster) -> set[int]:
    """What the running masters have."""
    return {
        slot
        for node in cluster.masters()
        for view in cluster.view(node)
        if view.port == node.port
        for low, high in view.slots
        for slot in range(low, high + 1)
    }


@on_the_loop
async def test_a_master_that_stands_still_is_replaced(redis_cluster: RedisCluster) -> None:
    async with linked(redis_cluster.url, BUSY) as link:
        asking = Asking(link, KEYS)
        asking.append()
        await asking.all_answered()
        master = redis_cluster.master_of(asking.keys[0])
        replica = redis_cluster.replica_of(master)
        master.pause()
        asking.append(each=20)
        await asyncio.to_thread(redis_cluster.wait_promoted, replica)
        asking.append(each=20)
        await asking.all_answered()
        master.resume()
        await asyncio.to_thread(redis_cluster.heal)
        asking.append(each=20)
        await asking.all_answered()
        await wait_for(lambda: not link.failing)
    asking.assert_done(lists(redis_cluster, asking))


@on_the_loop
async def test_slots_move_under_load(redis_cluster: RedisCluster) -> None:
    async with linked(redis_cluster.url, BUSY) as link:
        asking = Asking(link, KEYS)
        asking.append()
        await asking.all_answered()
        for key in asking.keys[:10]:
            source = redis_cluster.master_of(key)
            slot = redis_cluster.slot_of(key)
            target = other_master(redis_cluster, source)
            asking.append(each=5)
            redis_cluster.open_slot(slot, source=source, target=target)
            asking.append(each=5)
            await asyncio.sleep(0.003)
            redis_cluster.close_slot(slot, source=source, target=target)
            asking.append(each=5)
            await asyncio.sleep(0.003)
        await asking.all_answered()
        assert link.statistics().retries > 0
    asking.assert_done(lists(redis_cluster, asking))


@on_the_loop
async def test_what_a_slot_on_its_way_does_not_have_any_more_is_asked_at_its_goal(
    redis_cluster: RedisCluster,
) -> None:
    async with linked(redis_cluster.url, BUSY) as link:
        asking = Asking(link, 1)
        (key,) = asking.keys
        source = redis_cluster.master_of(key)
        target = other_master(redis_cluster, source)
        slot = redis_cluster.slot_of(key)
        redis_cluster.open_slot(slot, source=source, target=target)
        asking.append(each=20)
        await asking.all_answered()
        assert link.statistics().retries >= 20
        redis_cluster.close_slot(slot, source=source, target=target)
        asking.append(each=20)
        await asking.all_answered()
    asking.assert_done(lists(redis_cluster, asking))


@on_the_loop
async def test_half_a_client_on_its_way_waits(redis_cluster: RedisCluster) -> None:
    """Some keys are here and some are there (TRYAGAIN): only the end of the move helps."""
    async with linked(redis_cluster.url, BUSY) as link:
        here, there = "a:{pump}", "b:{pump}"
        source = redis_cluster.master_of(here)
        target = other_master(redis_cluster, source)
        slot = redis_cluster.slot_of(here)
        source.ask("SET", here, "1")
        source.ask("SET", there, "2")
        redis_cluster.open_slot(slot, source=source, target=target)
        source.ask("MIGRATE", "127.0.0.1", target.port, there, 0, 5_000)
        answers: list[object] = []
        link.command("pump", ("MGET", here, there), answers.append)
        link.command("pump", ("GET", here), answers.append)
        await wait_for(lambda: link.statistics().retries > 3)
        assert not answers
        redis_cluster.close_slot(slot, source=source, target=target)
        await wait_for(lambda: len(answers) == 2)
        assert answers == [[b"1", b"2"], b"1"]


@on_the_loop
async def test_a_link_finds_a_cluster_by_any_node_and_waits_for_one(redis_cluster: RedisCluster) -> None:
    replica = redis_cluster.replica_of(redis_cluster.masters()[0])
    replica.stop()
    async with linked(f"redis+cluster://127.0.0.1:{replica.port}") as link:
        asking = Asking(link, KEYS)
        asking.append()
        await wait_for(lambda: "Connection refused" in link.failing)
        assert link.is_away(asking.keys[0])
        replica.start()
        await asking.all_answered()
        assert not link.failing
    asking.assert_done(lists(redis_cluster, asking))
