"""Which partition a message belongs to, and which consumer of a group has which [queues-15]."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from google_crc32c import value as crc32c

_KEYS_REMEMBERED = 8_192
_KEY_CHARACTERS_REMEMBERED = 128


def _hash_key(key: str) -> int:
    return int(crc32c(key.encode()))


_remembered = lru_cache(_KEYS_REMEMBERED)(_hash_key)


def partition_of_key(key: str, partitions: int) -> int:
    """The partition of a key, from 0 to `partitions` - 1."""
    hashed = _remembered(key) if len(key) <= _KEY_CHARACTERS_REMEMBERED else _hash_key(key)
    return hashed % partitions


Member = TypeVar("Member")


def assign(partitions: int, members: Sequence[Member]) -> list[Member | None]:
    """The member for each partition, None when there is none.

    `members` are in the order of joining. Blocks are contiguous, the last member takes the remainder; members beyond
    the number of partitions idle.
    """
    if not members:
        return [None] * partitions
    working = min(partitions, len(members))
    block = partitions // working
    return [members[min(partition // block, working - 1)] for partition in range(partitions)]
