"""What is advised of a Redis that cannot be placed costs no other slot its keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import cast

import pytest

from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.log_notes import RedisLogNotes
from embermq.formats.redis_layout import SESSION_PREFIX, key_prefix
from embermq.ports.errors import StoreError

OWN, OTHER = f"{SESSION_PREFIX}x", f"{key_prefix(1)}{SESSION_PREFIX}y"


class Redis:
    """One server with these keys, asked by the node of a slot."""

    is_cluster = False
    masters = (0,)

    def __init__(self, slot: int, keys: Sequence[str]) -> None:
        self.prefix = key_prefix(slot)
        self._keys = keys

    def command(self, *_words: object) -> None:
        return None

    def keys(self, _master: int, pattern: str) -> Iterator[list[bytes]]:
        for key in self._keys:
            if fnmatchcase(key, self.prefix + pattern):
                yield [key.encode()]


@pytest.mark.parametrize(
    ("slot", "keys", "advice"),
    [
        (0, [OWN], "empty it (FLUSHDB on each master) and"),
        (0, [OWN, OTHER], "delete all keys that do not begin with slot- "),
        (1, [OWN, OTHER], "delete all keys slot-1:* and"),
    ],
)
def test_it_is_said_what_to_delete(slot: int, keys: Sequence[str], advice: str) -> None:
    notes = RedisLogNotes(cast(BlockingRedis, Redis(slot, keys)), "redis")
    with pytest.raises(StoreError, match="EmberMQ cannot place") as told:
        notes.known()
    assert advice in str(told.value)
