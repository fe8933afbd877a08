"""The messages of one queue, in columns: a million of them in tens of megabytes [queues-43].

Sequences ascend with holes, and most messages go in about the order in which they came. So they stand in blocks of
consecutive numbers, and a block goes with its last message. One that stays alone keeps a block of 14 KB.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator

from msgspec import Struct

FILLED = sys.maxsize
"""Above all sequences: a group has been offered every one."""
_SHIFT = 9
BLOCK = 1 << _SHIFT
_MASK = BLOCK - 1
_NONE = array("q", [-1]) * BLOCK
_ZEROS = array("q", [0]) * BLOCK
_COUNTS = array("I", [0]) * BLOCK
NEAR_BLOCKS = 64
"""Numbers that are tried before all blocks are looked at: a start leaves a gap of 20, a backup that was restored one of
millions."""
KEYS_REMEMBERED = 65_536
"""Keys that are told apart, so that a thousand messages of one key have it once."""


class QueueEntry(Struct, frozen=True, gc=False):
    """One message of a queue, and where its record stands."""

    partition: int
    offset: int
    key: str | None
    expires_ms: int
    record_bytes: int = 0


class _Block:
    """`offsets` is -1 where there is no message; `owed`: how many groups have not settled it; `latest`: no offset that
    ever was here is greater."""

    __slots__ = ("count", "expires", "keys", "latest", "offsets", "owed", "partitions", "sizes")

    def __init__(self) -> None:
        self.count = 0
        self.latest = -1
        self.offsets = _NONE[:]
        self.expires = _ZEROS[:]
        self.partitions = _COUNTS[:]
        self.owed = _COUNTS[:]
        self.sizes = _COUNTS[:]
        self.keys: list[str | None] | None = None
        """None while nothing here has a key."""


class Entries:
    """Stores entries by ascending sequence. What is read often is read one by one: a `QueueEntry` is made when it is
    asked for."""

    __slots__ = ("_blocks", "_count", "_keys")

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._count = 0
        self._keys: dict[str, str] = {}

    def put(
        self,
        sequence: int,
        partition: int,
        offset: int,
        expires_ms: int,
        key: str | None,
        *,
        record_bytes: int = 0,
    ) -> None:
        """A message comes; nobody owes it."""
        block = self._blocks.get(sequence >> _SHIFT)
        if block is None:
            block = self._blocks[sequence >> _SHIFT] = _Block()
        at = sequence & _MASK
        block.offsets[at] = offset
        block.latest = max(block.latest, offset)
        block.expires[at] = expires_ms
        block.partitions[at] = partition
        block.sizes[at] = record_bytes
        block.owed[at] = 0
        if key is not None:
            if block.keys is None:
                block.keys = [None] * BLOCK
            if len(self._keys) >= KEYS_REMEMBERED:
                self._keys.clear()
            block.keys[at] = self._keys.setdefault(key, key)
        block.count += 1
        self._count += 1

    def remove(self, sequence: int) -> int:
        """It is gone; returns its offset."""
        block, at = self._blocks[sequence >> _SHIFT], sequence & _MASK
        offset = block.offsets[at]
        if offset < 0:
            raise KeyError(sequence)
        block.offsets[at] = -1
        if block.keys is not None:
            block.keys[at] = None
        block.count -= 1
        self._count -= 1
        if not block.count:
            del self._blocks[sequence >> _SHIFT]
        return offset

    def owe(self, sequence: int, more: int) -> int:
        """So many groups more, or less, have to settle it; returns how many there are."""
        owed = self._blocks[sequence >> _SHIFT].owed
        at = sequence & _MASK
        owed[at] += more
        return owed[at]

    def owed(self, sequence: int) -> int:
        """How many groups have to settle it."""
        return self._blocks[sequence >> _SHIFT].owed[sequence & _MASK]

    def partition(self, sequence: int) -> int:
        """Of a message that is there, as the others here."""
        return self._blocks[sequence >> _SHIFT].partitions[sequence & _MASK]

    def key(self, sequence: int) -> str | None:
        """The key that the message was published with, None without one."""
        keys = self._blocks[sequence >> _SHIFT].keys
        return None if keys is None else keys[sequence & _MASK]

    def expires_ms(self, sequence: int) -> int:
        """When a message expires, in broker time; 0 for never."""
        return self._blocks[sequence >> _SHIFT].expires[sequence & _MASK]

    def record_bytes(self, sequence: int) -> int:
        """How many bytes the record of a message has."""
        return self._blocks[sequence >> _SHIFT].sizes[sequence & _MASK]

    def first_from(self, sequence: int, end: int) -> int:
        """The first message at or after `sequence`; `end` when there is none below it. Holes cost little."""
        while sequence < end:
            block = self._blocks.get(sequence >> _SHIFT)
            if block is None:
                if not self._blocks:
                    return end
                sequence = self._next_block(sequence >> _SHIFT) << _SHIFT
                continue
            offsets = block.offsets
            for at in range(sequence & _MASK, BLOCK):
                if offsets[at] >= 0:
                    return min((sequence & ~_MASK) + at, end)
            sequence = (sequence | _MASK) + 1
        return end

    def at_offset(self, offset: int) -> int:
        """The first message whose record stands at `offset` or behind; -1 when there is none. Looks at blocks, and at
        the messages of a few."""
        for number in sorted(self._blocks):
            block = self._blocks[number]
            if block.latest >= offset:
                for at, each in enumerate(block.offsets):
                    if each >= max(0, offset):
                        return (number << _SHIFT) + at
        return -1

    def count_from(self, sequence: int) -> int:
        """How many there are at or behind it. Looks at blocks, and at the messages of one."""
        first = sequence >> _SHIFT
        count = sum(block.count for number, block in self._blocks.items() if number > first)
        block = self._blocks.get(first)
        if block is not None:
            count += sum(offset >= 0 for offset in block.offsets[sequence & _MASK :])
        return count

    def after(self, sequence: int) -> Iterator[int]:
        """Those above it, ascending, whatever stands before them; to be gone through before anything changes."""
        begin = sequence + 1
        for number in sorted(number for number in self._blocks if number >= begin >> _SHIFT):
            first = number << _SHIFT
            offsets = self._blocks[number].offsets
            for at in range(max(0, begin - first), BLOCK):
                if offsets[at] >= 0:
                    yield first + at

    def _next_block(self, number: int) -> int:
        """The lowest block above this one; of no block when there is none. The first in the order of coming is nearly
        always the lowest, and the next one is nearly always near."""
        first = next(iter(self._blocks))
        if first > number and min(self._blocks) > number:
            return min(self._blocks)
        for near in range(number + 1, number + 1 + NEAR_BLOCKS):
            if near in self._blocks:
                return near
        return min((each for each in self._blocks if each > number), default=sys.maxsize)

    def __contains__(self, sequence: int) -> bool:
        block = self._blocks.get(sequence >> _SHIFT)
        return block is not None and block.offsets[sequence & _MASK] >= 0

    def get(self, sequence: int) -> QueueEntry | None:
        """None when it is not there."""
        try:
            return self[sequence]
        except KeyError:
            return None

    def keys(self) -> Iterator[int]:
        """Sequences, ascending."""
        return iter(self)

    def __getitem__(self, sequence: int) -> QueueEntry:
        block, at = self._blocks[sequence >> _SHIFT], sequence & _MASK
        if block.offsets[at] < 0:
            raise KeyError(sequence)
        key = None if block.keys is None else block.keys[at]
        return QueueEntry(block.partitions[at], block.offsets[at], key, block.expires[at], block.sizes[at])

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for number in sorted(self._blocks):
            block = self._blocks.get(number)
            if block is not None:
                for at, offset in enumerate(block.offsets):
                    if offset >= 0:
                        yield (number << _SHIFT) + at
