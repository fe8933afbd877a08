"""The servers that tests start do what tests ask of them."""

from __future__ import annotations

import pytest
import redis
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer


def test_a_server_keeps_its_port_and_data_over_a_kill(redis_server: RedisServer) -> None:
    port = redis_server.port
    # With `everysec`, what is written waits in memory while the disk is busy with what came before.
    redis_server.ask("CONFIG", "SET", "appendfsync", "always")
    redis_server.ask("SET", "key", "value")
    redis_server.kill()
    with pytest.raises(redis.ConnectionError):
        redis_server.ask("GET", "key")
    redis_server.restart()
    assert redis_server.port == port
    assert redis_server.ask("GET", "key") == b"value"
    redis_server.ask("EVAL", "for i = 1, 3e6 do end", 0)
    used_s = redis_server.cpu_s()
    assert used_s > 0
    redis_server.restart()
    assert redis_server.cpu_s() >= used_s


def test_what_a_test_leaves_behind_is_gone_for_the_next(redis_server: RedisServer) -> None:
    assert redis_server.ask("DBSIZE") == 0
    redis_server.ask("SET", "key", "value")
    redis_server.pause()


def test_a_paused_server_is_there_for_the_next(redis_server: RedisServer) -> None:
    assert redis_server.ask("DBSIZE") == 0


def test_a_replica_takes_over_from_a_killed_master(redis_cluster: RedisCluster) -> None:
    before = redis_cluster.master_of("key")
    before.ask("SET", "key", "value")
    assert before.ask("WAIT", 1, 5_000) == 1
    killed, replica = redis_cluster.kill_master("key")
    redis_cluster.wait_promoted(replica)
    assert killed is before and redis_cluster.master_of("key") is replica
    assert replica.ask("GET", "key") == b"value"


def test_a_cluster_is_whole_and_empty_after_a_kill(redis_cluster: RedisCluster) -> None:
    assert len(redis_cluster.masters()) == 3
    assert all(node.ask("DBSIZE") == 0 for node in redis_cluster.nodes)


def test_a_slot_moves_with_its_keys(redis_cluster: RedisCluster) -> None:
    source = redis_cluster.master_of("key")
    target = next(node for node in redis_cluster.masters() if node is not source)
    source.ask("SET", "key", "value")
    slot = redis_cluster.slot_of("key")
    redis_cluster.open_slot(slot, source=source, target=target)
    with pytest.raises(redis.exceptions.AskError):
        source.ask("GET", "{key}2")
    redis_cluster.close_slot(slot, source=source, target=target)
    with pytest.raises(redis.exceptions.MovedError):
        source.ask("GET", "key")
    assert target.ask("GET", "key") == b"value"
    assert redis_cluster.master_of("key") is target
