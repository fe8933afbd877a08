"""Which records of an application log are repeats: told by their source positions, exactly.

The pipeline writes a record at least once. After a crash it repeats what it wrote since its last complete batch, and
what one of its tasks had missed then comes late, behind records with greater positions. So no single number can tell
a repeat from a latecomer: the positions seen are remembered one by one, above a floor for each source partition.

The floor. The pipeline reports for each source partition the position below which everything has reached the logs
that want it. Whoever hears this asks for the end of the application log *afterwards*: every first copy of a record
below the reported positions stands before that end. Once everything before that end is settled (acknowledged by the
client, or not for it), those records have been settled too, and what still comes with such a position is a repeat. A
floor that moved earlier, with what was read but not acknowledged below it, would turn the reading again after a crash
into a loss.

What is stored: no list of positions, but where to read them again. `committed_offset` of the application log, below
which all is settled; `base_offset`, at or below it, from which on the positions above the floors can all be read
again; the floors. A reader starts at the base: what lies before the committed offset fills the memory and is not
delivered. What was settled behind the committed offset, out of its turn, is told by the marks that the window stores
one by one. The log may be trimmed below the base.

One object is for one partition of an application log: a record and its repeats have one key, so one partition.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping

from msgspec import Struct

from embermq.model.application_positions import StoredPositions
from embermq.model.position import offset_of, partition_of


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


SEGMENT_RECORDS = 1_024
"""The base moves over so many records at a time."""
SEGMENTS_MAX = 256
"""More than these are joined in pairs: the base moves in longer steps then."""


class _Source:
    """One partition of the message log."""

    __slots__ = ("floor", "seen")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.seen = OffsetRanges()


class _Segment(Struct):
    """A stretch of the application log from `start` on, and the greatest source offsets of what was taken there."""

    start: int
    records: int
    greatest: dict[int, int]

    def is_below(self, sources: Mapping[int, _Source]) -> bool:
        return all(offset < sources[partition].floor for partition, offset in self.greatest.items())


class Positions:
    """Reads of one partition of an application log begin at `base_offset` and go on without leaving anything out.

    `settled` are the offsets at and above the committed one that the stored marks call settled.
    """

    def __init__(
        self,
        stored: StoredPositions | None = None,
        settled: Iterable[int] = (),
        segment_records: int = SEGMENT_RECORDS,
    ) -> None:
        stored = stored or StoredPositions()
        self.base_offset = stored.base_offset
        self.committed_offset = stored.committed_offset
        self._next = stored.base_offset
        """Everything before it has been read since the start."""
        self._settled = set(settled)
        self._segment_records = segment_records
        self._sources = {partition: _Source(floor) for partition, floor in stored.floors}
        self._segments: list[_Segment] = []
        self._floors = stored.floors
        """Of the sources that have one, in order."""
        self._reports: list[tuple[dict[int, int], int]] = []
        """Reported positions and the log's end asked for afterwards: the one that is next to be reached, and the
        newest."""

    def take(self, at: int, position: int) -> bool:
        """The record at offset `at` of the log has this position in the message log. True when it is to be delivered;
        False for a repeat, and for what was settled before the reader began.

        What is True for stays unsettled until `commit` passes it.
        """
        self._next = at + 1
        partition, offset = partition_of(position), offset_of(position)
        source = self._sources.get(partition)
        if source is None:
            source = self._sources[partition] = _Source(0)
        if offset < source.floor or not source.seen.add(offset):
            return False
        segments = self._segments
        if not segments or segments[-1].records >= self._segment_records:
            self._open_segment(at)
        segment = segments[-1]
        segment.records += 1
        if offset > segment.greatest.get(partition, -1):
            segment.greatest[partition] = offset
        return self._is_due(at)

    def _is_due(self, at: int) -> bool:
        """Whether what is no repeat was not settled before the reader began."""
        if at < self.committed_offset:
            return False
        if at in self._settled:
            self._settled.remove(at)
            return False
        return True

    def has(self, position: int) -> bool:
        """Whether this one was taken, or is below a floor."""
        source, offset = self._sources.get(partition_of(position)), offset_of(position)
        return source is not None and (offset < source.floor or offset in source.seen)

    def is_below_floors(self, position: int) -> bool:
        """Whether all that comes from there is a repeat."""
        source = self._sources.get(partition_of(position))
        return source is not None and offset_of(position) < source.floor

    def skip(self, at: int) -> None:
        """The record at offset `at` is not for this reader: settled, and no matter how often it comes."""
        self._next = at + 1

    def commit(self, offset: int) -> None:
        """Everything before this offset of the log is settled, or there is nothing."""
        self.committed_offset = max(self.committed_offset, offset)
        while self._reports and self._reports[0][1] <= self.committed_offset:
            self._raise_floors(self._reports.pop(0)[0])
        self._move_base()

    def complete(self, reported: Mapping[int, int], log_end: int) -> None:
        """The pipeline has reported the next position (offset by source partition) to be complete; the log's end was
        asked for after that report."""
        report = (dict(reported), log_end)
        if len(self._reports) < 2:
            self._reports.append(report)
        else:
            self._reports[1] = report
        self.commit(self.committed_offset)

    def stored(self) -> StoredPositions:
        """What to store. After a start with it, and with the marks of the same moment, nothing is lost, and nothing
        comes again whose settling was stored."""
        return StoredPositions(self.base_offset, self.committed_offset, self._floors)

    @property
    def remembered(self) -> int:
        """Ranges of source offsets in memory, 16 bytes each. With none of them a report would move nothing."""
        return sum(len(source.seen) for source in self._sources.values())

    def _open_segment(self, at: int) -> None:
        segments = self._segments
        if len(segments) >= SEGMENTS_MAX:
            joined = [_joined(one, other) for one, other in zip(segments[::2], segments[1::2], strict=True)]
            segments[:] = joined
            self._segment_records *= 2
        segments.append(_Segment(at, 0, {}))

    def _raise_floors(self, reported: dict[int, int]) -> None:
        for partition, offset in reported.items():
            source = self._sources.setdefault(partition, _Source(0))
            if offset > source.floor:
                source.floor = offset
                source.seen.forget_below(offset)
        floors = ((partition, source.floor) for partition, source in self._sources.items())
        self._floors = tuple(sorted(entry for entry in floors if entry[1]))
        segments = self._segments
        passed = 0
        while passed < len(segments) and segments[passed].is_below(self._sources):
            passed += 1
        del segments[:passed]

    def _move_base(self) -> None:
        """A segment gets below the floors when they rise, and not before: what is below them opens none."""
        segments = self._segments
        first = segments[0].start if segments else self._next
        self.base_offset = max(self.base_offset, min(first, self.committed_offset))


class SourceOffsets(Positions):
    """Of a log whose offsets are the source positions: nothing comes late, and what comes again, wherever from, stands
    below what has been read, and is not read."""

    def take(self, at: int, position: int) -> bool:
        self._next = at + 1
        return self._is_due(at)

    def stored(self) -> StoredPositions:
        return StoredPositions(self.committed_offset, self.committed_offset)


def _joined(one: _Segment, other: _Segment) -> _Segment:
    greatest = dict(one.greatest)
    for partition, offset in other.greatest.items():
        greatest[partition] = max(offset, greatest.get(partition, -1))
    return _Segment(one.start, one.records + other.records, greatest)
