"""Which partition a message belongs to: CRC-32C of its key, the same in every process and on every node [queues-8]."""

from functools import lru_cache

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
