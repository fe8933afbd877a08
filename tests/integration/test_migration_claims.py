"""What a migration does to a Redis before the first session: whose it is, and which generations are taken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.redis_server import RedisServer

from embermq.adapters.redis.address import RedisSettings, parse_address
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.log_notes import RedisLogNotes
from embermq_migrate.errors import MigrationError
from embermq_migrate.migration import redis_place
from embermq_migrate.redis_sessions import claim_store, take_generations


@pytest.fixture
def notes(redis_server: RedisServer) -> Iterator[RedisLogNotes]:
    """As a broker's start reads them."""
    redis = BlockingRedis(parse_address(redis_server.url), RedisSettings())
    yield RedisLogNotes(redis, "redis")
    redis.close()


def test_a_first_start_finds_no_log_and_gives_no_generation_twice(
    redis_server: RedisServer, notes: RedisLogNotes
) -> None:
    place = redis_place(redis_server.url)
    claim_store(place, read_only=True)
    assert redis_server.ask("DBSIZE") == 0
    claim_store(place, read_only=False)
    assert [take_generations(place, 5), take_generations(place, 3)] == [1, 6]
    known = notes.known()
    assert (known.is_any, known.generations) == (False, 9)


def test_a_broker_that_may_be_running_is_left_alone(redis_server: RedisServer, notes: RedisLogNotes) -> None:
    place = redis_place(redis_server.url)
    notes.open("the log")
    claim_store(place, read_only=True)
    with pytest.raises(MigrationError, match="its broker is running, or has not ended in order"):
        claim_store(place, read_only=False)
    redis_server.ask("HSET", "embermq:log", "closed", "1")
    claim_store(place, read_only=False)
    assert notes.known().identity == "the log"
