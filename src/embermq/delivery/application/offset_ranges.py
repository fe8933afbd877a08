"""A set of offsets that mostly grows at its end, held as ranges: 16 bytes a range."""

from array import array
from bisect import bisect_right


class OffsetRanges:
    """Offsets without repeats; neighbours melt into one range."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")
        """One past the last of each range."""

    def __len__(self) -> int:
        """Ranges, not offsets."""
        return len(self._starts)

    def __contains__(self, offset: int) -> bool:
        place = bisect_right(self._starts, offset) - 1
        return place >= 0 and offset < self._ends[place]

    def add(self, offset: int) -> bool:
        """Add one offset; False when it was there."""
        starts, ends = self._starts, self._ends
        if not ends or offset > ends[-1]:
            starts.append(offset)
            ends.append(offset + 1)
            return True
        if offset == ends[-1]:
            ends[-1] = offset + 1
            return True
        after = bisect_right(starts, offset)
        if after and offset < ends[after - 1]:
            return False
        joins_before = after > 0 and ends[after - 1] == offset
        joins_after = after < len(starts) and starts[after] == offset + 1
        if joins_before and joins_after:
            ends[after - 1] = ends[after]
            del starts[after], ends[after]
        elif joins_before:
            ends[after - 1] = offset + 1
        elif joins_after:
            starts[after] = offset
        else:
            starts.insert(after, offset)
            ends.insert(after, offset + 1)
        return True

    def forget_below(self, floor: int) -> None:
        """Let go of every offset below."""
        starts, ends = self._starts, self._ends
        gone = bisect_right(ends, floor)
        del starts[:gone], ends[:gone]
        if starts and starts[0] < floor:
            starts[0] = floor
