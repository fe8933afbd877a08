"""Exact counting of what one subscriber received of one publisher."""

from __future__ import annotations

GAP_MAX = 1 << 26
"""A sequence number further ahead than this was not written by our publisher."""


class Tally:
    """One byte a sequence number: 1 when it has arrived.

    `seen` is public so that the receiving loop may append to it: a number equal to its length is the next in
    order. Every other number goes through `out_of_order`.
    """

    __slots__ = ("corrupt", "duplicated", "reordered", "seen")

    def __init__(self) -> None:
        self.seen = bytearray()
        self.duplicated = 0
        self.reordered = 0
        self.corrupt = 0

    def accept(self, sequence: int) -> None:
        """Count one arrival."""
        if sequence == len(self.seen):
            self.seen.append(1)
        else:
            self.out_of_order(sequence)

    def out_of_order(self, sequence: int) -> None:
        """Count an arrival that is not the next number: a gap before it, a late first arrival or a double."""
        seen = self.seen
        if sequence >= len(seen):
            if sequence - len(seen) > GAP_MAX:
                self.corrupt += 1
                return
            seen.extend(bytes(sequence - len(seen)))
            seen.append(1)
        elif seen[sequence]:
            self.duplicated += 1
        else:
            seen[sequence] = 1
            self.reordered += 1

    @property
    def arrived(self) -> int:
        """Different messages that have arrived."""
        return self.seen.count(1)

    def missing(self, wanted: bytearray) -> int:
        """How many of `wanted` (1 at each sequence number that had to arrive) have not arrived."""
        if self.seen.startswith(wanted) and 0 not in wanted:
            return 0
        return (int.from_bytes(wanted, "little") & ~int.from_bytes(self.seen, "little")).bit_count()
