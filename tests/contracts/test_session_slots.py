"""Reading session data from a cluster whose slots move: nothing is missed in silence."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contracts.session_stores import InRedis
from tests.support.redis_cluster import RedisCluster

from embermq.adapters.redis.blocking import BlockingRedis
from embermq.model.client_type import ClientType
from embermq.model.session import NEVER_EXPIRES, SessionRow
from embermq.ports.errors import StoreError

ANN = SessionRow("ann", 1, 1, ClientType.DEVICE, "", 5, NEVER_EXPIRES, True, 0, 0)
KEY = "s:ol:{ann}"


def test_a_slot_on_its_way_is_told_of(redis_cluster: RedisCluster) -> None:
    """A session that has gone to the other node already would be born anew, and lose all that it had."""
    stores = InRedis(redis_cluster.url)
    stores.write(sessions=[ANN])
    slot, source = redis_cluster.slot_of(KEY), redis_cluster.master_of(KEY)
    target = next(node for node in redis_cluster.masters() if node is not source)
    redis_cluster.open_slot(slot, source=source, target=target)
    for read in (stores.sessions.load, stores.sessions.load_retained):
        with pytest.raises(StoreError, match=rf"slot {slot} is on its way from one node to another"):
            read()
    redis_cluster.close_slot(slot, source=source, target=target)
    stores.reopen()
    assert [found.row for found in stores.sessions.load().sessions] == [ANN]
    stores.close()


def test_a_slot_that_moved_while_it_was_read_is_told_of(
    redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = InRedis(redis_cluster.url)
    stores.write(sessions=[ANN])
    slot, source = redis_cluster.slot_of(KEY), redis_cluster.master_of(KEY)
    target = next(node for node in redis_cluster.masters() if node is not source)
    keys = BlockingRedis.keys

    def move_first(redis: BlockingRedis, master: Any, pattern: str) -> Any:
        if redis_cluster.master_of(KEY) is source:
            redis_cluster.move_slot(slot, source=source, target=target)
        return keys(redis, master, pattern)

    monkeypatch.setattr(BlockingRedis, "keys", move_first)
    with pytest.raises(StoreError, match="slots moved while it was read"):
        stores.sessions.load()
    stores.reopen()
    assert [found.row for found in stores.sessions.load().sessions] == [ANN]
    stores.close()
