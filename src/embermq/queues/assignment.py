"""Which consumer of a group has which partitions [queues-15]."""

from collections.abc import Sequence
from typing import TypeVar

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
