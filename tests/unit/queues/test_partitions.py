"""Partitions of keys, and of consumers. Golden vectors: a change here moves messages of running queues."""

import pytest
from google_crc32c import value as crc32c

from embermq.queues.partitioner import assign, partition_of_key


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE306_9283),
        (bytes(32), 0x8A91_36AA),
        (b"\xff" * 32, 0x62A8_AB43),
        (bytes(range(32)), 0x46DD_794E),
        (bytes(range(31, -1, -1)), 0x113F_DB5C),
    ],
)
def test_crc32c_is_that_of_the_standards(data: bytes, crc: int) -> None:
    """Check value of the catalogue of CRCs, and [RFC 3720, B.4]."""
    assert crc32c(data) == crc


GOLDEN = [
    ("", 10, 0),
    ("user-1", 10, 2),
    ("user-2", 10, 6),
    ("order/4711", 10, 1),
    ("ä€😀", 10, 1),
    ("user-1", 3, 1),
    ("user-1", 1024, 172),
    ("k" * 200, 10, 5),
]


@pytest.mark.parametrize(("key", "partitions", "partition"), GOLDEN)
def test_a_key_has_its_partition(key: str, partitions: int, partition: int) -> None:
    assert partition_of_key(key, partitions) == partition


@pytest.mark.parametrize(
    ("partitions", "members", "blocks"),
    [
        (10, "ABC", "AAABBBCCCC"),
        (10, "A", "AAAAAAAAAA"),
        (10, "AB", "AAAAABBBBB"),
        (10, "ABCD", "AABBCCDDDD"),
        (10, "ABCDEF", "ABCDEFFFFF"),
        (10, "ABCDEFGHIJ", "ABCDEFGHIJ"),
        (3, "ABCDE", "ABC"),
        (1, "AB", "A"),
        (2, "", "__"),
    ],
)
def test_blocks_are_contiguous_and_the_last_takes_the_rest(
    partitions: int, members: str, blocks: str
) -> None:
    assert "".join(member or "_" for member in assign(partitions, members)) == blocks


def test_every_partition_has_one_owner_whatever_the_numbers() -> None:
    for partitions in range(1, 40):
        for count in range(1, 40):
            owners = assign(partitions, range(count))
            assert len(owners) == partitions
            assert owners == sorted(owner for owner in owners if owner is not None)
            assert len(set(owners)) == min(partitions, count)
