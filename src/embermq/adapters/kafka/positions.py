"""The ends of the message log: of the partition that is written to, and of those before it, which get nothing more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from threading import Lock

from msgspec import Struct

from embermq.model.position import offset_of, partition_of, position_of

MARKS_MAX = 4_096
MARK_EVERY_RECORDS = 64
"""At first; twice as many each time that the marks are too many."""


class _Mark(Struct, frozen=True):
    """Bytes that this run had appended before it wrote the record at `position`."""

    position: int
    appended_bytes: int


class LogPositions:
    """Of one log. Written on the broker's thread, read by any. `closed` has the end offset of each older partition.
    `skipped` are offsets behind the last record that a transaction has taken: the next record stands behind them."""

    def __init__(self, end: int, closed: Mapping[int, int] | None = None, *, skipped: int = 0) -> None:
        self.closed = dict(closed or {})
        self.skipped = skipped
        self._lock = Lock()
        self._end = end
        self._appended_bytes = 0
        self._marks = [_Mark(end, 0)]
        self._every = MARK_EVERY_RECORDS

    @property
    def partition(self) -> int:
        """The one that is written to, the newest."""
        return partition_of(self._end)

    @property
    def end(self) -> int:
        """The position of the next record."""
        return self._end

    @property
    def begun(self) -> int:
        """The end when this run began."""
        return self._marks[0].position

    @property
    def appended_bytes(self) -> int:
        """Bytes that this run has appended, as their records were encoded; 0 at its start."""
        return self._appended_bytes

    def ends(self) -> dict[int, int]:
        """The end offset of each partition."""
        end = self._end
        return self.closed | {partition_of(end): offset_of(end)}

    def close_partition(self, partition: int) -> None:
        """Go on at the beginning of another partition, a later one. Before the first record."""
        with self._lock:
            self.closed[partition_of(self._end)] = offset_of(self._end)
            for between in range(partition_of(self._end) + 1, partition):
                self.closed[between] = 0
            self._end = position_of(partition, 0)
            self.skipped = 0
            self._marks = [_Mark(self._end, 0)]

    def advance(self, end: int, appended_bytes: int) -> None:
        """A tick is committed: what the next record's position is now."""
        with self._lock:
            marks = self._marks
            if self._end - marks[-1].position >= self._every:
                marks.append(_Mark(self._end, self._appended_bytes))
                if len(marks) > MARKS_MAX:
                    del marks[1:-1:2]
                    self._every *= 2
            self._end = end
            self.skipped = 0
            self._appended_bytes += appended_bytes

    def bytes_from(self, position: int) -> int:
        """Bytes of records from this one on, of what this run wrote; between two marks in proportion."""
        with self._lock:
            index = bisect_right(self._marks, position, key=lambda mark: mark.position)
            if not index:
                return self._appended_bytes
            before, after = self._between(index)
            span = after.position - before.position
            share = (position - before.position) / span if span else 1.0
            below = before.appended_bytes + share * (after.appended_bytes - before.appended_bytes)
            return self._appended_bytes - round(below)

    def position_keeping(self, size_bytes: int) -> int:
        """About the position from which so many bytes are left, of what this run wrote."""
        with self._lock:
            below = self._appended_bytes - size_bytes
            if below <= 0:
                return self._marks[0].position
            index = bisect_right(self._marks, below, key=lambda mark: mark.appended_bytes)
            before, after = self._between(index)
            span_bytes = after.appended_bytes - before.appended_bytes
            share = (below - before.appended_bytes) / span_bytes if span_bytes else 0.0
            return before.position + int(share * (after.position - before.position))

    def _between(self, index: int) -> tuple[_Mark, _Mark]:
        last = _Mark(self._end, self._appended_bytes)
        return self._marks[index - 1], self._marks[index] if index < len(self._marks) else last
