"""Nodes of a cluster come and go under load: all are restarted one after another, or new ones are added."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

import pytest
from tests.faults.cluster import (
    WAIT_S,
    all_is_taken,
    node,
    nodes,
    serves_anew,
    stands_by,
    started_fleet,
    starts,
)
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.mqtt_client import run
from tests.support.waiting import wait_for

MESSAGES = 150
"""For each restart, from each publisher."""


async def start_again(node: BrokerProcess) -> None:
    """It was stopped; others have all slots."""
    before = node.output_size()
    node.launch()
    await wait_for(partial(stands_by, node, before), WAIT_S, node.output())


@pytest.mark.promise("cluster-7", "cluster-8")
@pytest.mark.in_faults
def test_all_nodes_are_restarted_in_turn_and_nothing_is_lost_or_doubled(
    seed: int, etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """As docs/cluster.md says: first the one that stands by, then each that serves, when the slot of the one before has
    a node again."""
    random = Random(seed)

    async def scenario(found: list[BrokerProcess]) -> None:
        fleet = await started_fleet(found, random)
        *serving, spare = found
        fleet.allow(MESSAGES)
        await wait_for(partial(stands_by, spare, 0), WAIT_S, spare.output())
        assert await asyncio.to_thread(spare.stop) == 0
        await start_again(spare)
        for each in serving:
            fleet.allow(MESSAGES)
            before = starts(spare)
            assert await asyncio.to_thread(each.stop) == 0
            await wait_for(partial(serves_anew, spare, before), WAIT_S, "the one that stood by serves")
            await start_again(each)
            spare = each
            fleet.check()
        await all_is_taken(fleet)
        await fleet.drain()
        await fleet.stop()
        assert fleet.acknowledged() == len(fleet.publishers) * len(found) * MESSAGES
        fleet.judge()
        assert not any("Traceback" in each.output() for each in found)

    with nodes(etcd, servers, tmp_path, spare=True) as found:
        run(scenario(found), 600)


@pytest.mark.promise("cluster-2", "cluster-7", "cluster-8")
@pytest.mark.long_rounds
def test_nodes_that_are_added_under_load_take_slots_over_and_nothing_is_lost_or_doubled(
    seed: int, etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """As docs/cluster.md says of a cluster that grows: one takes the place of a node that is stopped, another one the
    slot of a node that was killed and has no successor yet."""
    random = Random(seed)

    async def scenario(found: list[BrokerProcess], added: list[BrokerProcess]) -> None:
        fleet = await started_fleet([*found, *added], random)
        fleet.allow(MESSAGES)
        for new, is_killed in zip(added, (False, True), strict=True):
            old = found.pop(random.randrange(len(found)))
            before = starts(new)
            if is_killed:
                old.kill()
                fleet.allow(MESSAGES)
                new.launch()
            else:
                await start_again(new)
                fleet.allow(MESSAGES)
                assert await asyncio.to_thread(old.stop) == 0
            await wait_for(partial(serves_anew, new, before), WAIT_S, "the new one serves")
            fleet.allow(MESSAGES)
            fleet.check()
        await all_is_taken(fleet)
        await fleet.drain()
        await fleet.stop()
        assert fleet.acknowledged() == len(fleet.publishers) * 5 * MESSAGES
        fleet.judge()
        assert not any("Traceback" in each.output() for each in (*found, *added))

    with nodes(etcd, servers, tmp_path) as found, ExitStack() as closing:
        added = [node(etcd, servers, tmp_path, name) for name in ("added", "later")]
        for each in added:
            closing.callback(each.close)
        run(scenario(found, added), 600)
