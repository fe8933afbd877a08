"""Which offsets belong to which sequence numbers: exact at the end of the log, sparse memory of what this run wrote."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from threading import Lock

from msgspec import Struct

from embermq.ports.log_state import Filled

MARKS_MAX = 4_096
MARK_EVERY_RECORDS = 64
"""At first; twice as many each time that the marks are too many."""


class Mark(Struct, frozen=True):
    """The records before a tick: the next number, the next offset of each partition, bytes that this run had appended
    before it."""

    number: int
    offsets: tuple[int, ...]
    appended_bytes: int


class LogPositions:
    """Of one log. Written on the broker's thread, read by any."""

    def __init__(
        self, end: int, ends: Sequence[int], *, records_end: int | None = None, filled: Filled = ()
    ) -> None:
        """`records_end`: one more than the number of the last record; numbers from there to `end` are left out."""
        self.filled = filled
        self._lock = Lock()
        self._records_end = end if records_end is None else records_end
        self._marks = [Mark(end, tuple(ends), 0)]
        self._ends = list(ends)
        self._end = end
        self._appended_bytes = 0
        self._every = MARK_EVERY_RECORDS

    @property
    def partitions(self) -> int:
        return len(self._ends)

    def end(self) -> Mark:
        """Behind the last record that is committed."""
        with self._lock:
            return Mark(self._end, tuple(self._ends), self._appended_bytes)

    def number_and_offsets(self) -> tuple[int, tuple[int, ...]]:
        """The same, without bytes."""
        with self._lock:
            return self._end, tuple(self._ends)

    def first(self) -> Mark:
        """Where this run began."""
        with self._lock:
            return self._marks[0]

    def last_number(self) -> int:
        """Of the last record that is committed, or of one before it; -1 without any."""
        with self._lock:
            return (self._end if self._end > self._marks[0].number else self._records_end) - 1

    def next_offset(self, partition: int) -> int:
        """Of the record that is produced next. On the broker's thread."""
        return self._ends[partition]

    def advance(self, end: int, last_offsets: dict[int, int], appended_bytes: int) -> None:
        """A tick is committed: the next number, and the offset of its last record in each partition that got some."""
        with self._lock:
            if self._end - self._marks[-1].number >= self._every:
                self._marks.append(Mark(self._end, tuple(self._ends), self._appended_bytes))
                if len(self._marks) > MARKS_MAX:
                    del self._marks[1:-1:2]
                    self._every *= 2
            for partition, offset in last_offsets.items():
                self._ends[partition] = offset + 1
            self._end = end
            self._appended_bytes += appended_bytes

    def fillers_from(self, partition: int, offset: int) -> int:
        """How many of the last fillers a partition has at this offset and above."""
        if partition >= len(self.filled):
            return 0
        begin, end = self.filled[partition]
        return max(0, end - max(begin, offset))

    def beyond(self, partition: int, offset: int, count: int) -> int:
        """The offset so many records behind this one, of which fillers are none."""
        at, fillers = offset + count, self.fillers_from(partition, offset)
        return at + fillers if fillers and at >= self.filled[partition][0] else at

    def before(self, number: int) -> Mark | None:
        """The last mark at or before a number; None for what earlier runs wrote."""
        with self._lock:
            if number >= self._end:
                return Mark(self._end, tuple(self._ends), self._appended_bytes)
            index = bisect_right(self._marks, number, key=lambda mark: mark.number)
            return self._marks[index - 1] if index else None

    def bytes_from(self, number: int) -> int:
        """Bytes of records with this number and above, of what this run wrote; between two marks in proportion."""
        with self._lock:
            last = Mark(self._end, (), self._appended_bytes)
            index = bisect_right(self._marks, number, key=lambda mark: mark.number)
            if not index:
                return self._appended_bytes
            before = self._marks[index - 1]
            after = self._marks[index] if index < len(self._marks) else last
            span = after.number - before.number
            share = (number - before.number) / span if span else 1.0
            below = before.appended_bytes + share * (after.appended_bytes - before.appended_bytes)
            return self._appended_bytes - round(below)

    def number_keeping(self, size_bytes: int) -> int:
        """About the number from which so many bytes are left, of what this run wrote."""
        with self._lock:
            below = self._appended_bytes - size_bytes
            if below <= 0:
                return self._marks[0].number
            index = bisect_right(self._marks, below, key=lambda mark: mark.appended_bytes)
            before = self._marks[index - 1]
            after = Mark(self._end, (), self._appended_bytes)
            if index < len(self._marks):
                after = self._marks[index]
            span_bytes = after.appended_bytes - before.appended_bytes
            share = (below - before.appended_bytes) / span_bytes if span_bytes else 0.0
            return before.number + int(share * (after.number - before.number))
