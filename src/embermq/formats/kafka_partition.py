"""Which partition of a topic a key belongs to: murmur2, as Kafka's Java clients compute it.

The broker says the partition itself, so that it is the same whatever library produces, and known before.
"""

_MASK = 0xFFFF_FFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(key: bytes) -> int:
    """32 bits, unsigned."""
    length = len(key)
    h = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if length > whole:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """0 to `partitions` - 1."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions
