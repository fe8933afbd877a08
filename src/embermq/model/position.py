"""Where a record stands in the message log: Position(partition, offset), in one 64-bit integer.

A log has one partition that is written to, the newest. Another one follows only when a store has lost the end of the
one before: what was told of that end stays true, nothing is filled or renumbered, and no position is used twice. So
the positions of one writer ascend through its partitions, and are compared as they are.

The embedded log has partition 0 alone: there a position is the offset.
"""

from collections.abc import Mapping

OFFSET_BITS = 46
"""7 * 10^13 records of one partition."""
OFFSET_END = 1 << OFFSET_BITS
EXACT_PARTITIONS = 1 << 53 - OFFSET_BITS
"""Positions of so many partitions are exact as a score of Redis, which is a double."""
PARTITION_END = 1 << 17


def position_of(partition: int, offset: int) -> int:
    """The position of a record. Raises ValueError for what no log has."""
    if not (0 <= partition < PARTITION_END and 0 <= offset < OFFSET_END):
        raise ValueError(f"partition {partition}, offset {offset} is beyond what a position can hold")
    return partition << OFFSET_BITS | offset


def partition_of(position: int) -> int:
    """The partition of a position."""
    return position >> OFFSET_BITS


def offset_of(position: int) -> int:
    """The offset of a position, in its partition."""
    return position & OFFSET_END - 1


def told_place(partition: int, offset: int, slot: int | None = None) -> str:
    """As people read it: `partition:offset`, with the slot in front where a cluster has several."""
    return f"{partition}:{offset}" if slot is None else f"{slot}:{partition}:{offset}"


def records_between(start: int, end: int, ends: Mapping[int, int]) -> int:
    """How many positions a log has from `start` on and before `end`; `ends` has the end offset of each partition."""
    first, last = partition_of(start), partition_of(end)
    if first >= last:
        return max(0, end - start)
    between = sum(stop for partition, stop in ends.items() if first < partition < last)
    return max(0, ends.get(first, 0) - offset_of(start)) + between + offset_of(end)
