"""A start on a Redis whose queues somebody else has been at: refused, and the key is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.servers_stores import ServersStores
from tests.contracts.test_queue_store import ENTRY, GROUP, RETRY, queue_writes, record
from tests.support.redis_server import RedisServer

from embermq.ports.errors import StoreError


@pytest.fixture
def stores(redis_server: RedisServer, tmp_path: Path) -> Iterator[ServersStores]:
    opened = ServersStores(redis_server.url, tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("q:s:{other}", ("SET", "q:s:{other}", "x")),
        ("q:s:{tasks/ü}", ("SETRANGE", "q:s:{tasks/ü}", 1, "x")),
        ("q:s:{copy}", ("COPY", "q:s:{tasks/ü}", "q:s:{copy}")),
        ("q:g:{tasks/ü}", ("HSET", "q:g:{tasks/ü}", "workers", "{}")),
        ("q:m:{tasks/ü}", ("HSET", "q:m:{tasks/ü}", "seven", "{}")),
        ("q:e:{tasks/ü}", ("HSET", "q:e:{tasks/ü}", "x", "{}")),
        ("q:e:{tasks/ü}", ("HSET", "q:e:{tasks/ü}", "7", "{}")),
        ("q:d:{tasks/ü}", ("SET", "q:d:{tasks/ü}", "a string")),
        ("embermq:queues", ("SET", "embermq:queues", "many")),
    ],
)
def test_what_is_broken_is_named(stores: ServersStores, key: str, words: tuple[str | int, ...]) -> None:
    groups = {(3, "workers"): GROUP}
    stores.write(
        records=[record(b"")], queues=queue_writes(ENTRY, groups=groups, marks={(3, "workers", 7): RETRY})
    )
    stores.raw.command(key, *words)
    with pytest.raises(StoreError, match=f"key .*{re.escape(key)}"):
        read_all(stores)


def read_all(stores: ServersStores) -> None:
    stores.queues.next_generation()
    for queue in stores.queues.load():
        list(queue.entries)


def test_a_queue_that_was_deleted_under_the_broker_is_told_of(stores: ServersStores) -> None:
    """What comes for it is not kept, as with a session: another broker may have taken it."""
    stores.write(records=[record(b"")], queues=queue_writes(ENTRY))
    assert stores.writer_of_state.estranged == ""
    stores.raw.command("q:s:{tasks/ü}", "DEL", "q:s:{tasks/ü}")
    stores.write(records=[record(b"")], queues=queue_writes(ENTRY))
    assert "'tasks/ü'" in stores.writer_of_state.estranged
