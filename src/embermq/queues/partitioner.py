"""Which partition a message belongs to: CRC-32C of its key, the same in every process and on every node [queues-8]."""

from functools import lru_cache

_POLYNOMIAL = 0x82F6_3B78
"""Castagnoli's, reflected [RFC 3720, appendix B.4]."""
_KEYS_REMEMBERED = 8_192
_KEY_CHARACTERS_REMEMBERED = 128


def _row(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(_row(byte) for byte in range(256))


def crc32c(data: bytes) -> int:
    """32 bits, unsigned."""
    crc = 0xFFFF_FFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFF_FFFF


def _hash_key(key: str) -> int:
    return crc32c(key.encode())


_remembered = lru_cache(_KEYS_REMEMBERED)(_hash_key)


def partition_of_key(key: str, partitions: int) -> int:
    """0 to `partitions` - 1."""
    hashed = _remembered(key) if len(key) <= _KEY_CHARACTERS_REMEMBERED else _hash_key(key)
    return hashed % partitions
