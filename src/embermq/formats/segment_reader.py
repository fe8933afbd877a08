"""Reading the segment files of a log, in the process that writes them or in another one.

Nothing is mapped and nothing is locked: a file that is trimmed meanwhile stays readable while it is open. Readers stop
at the end that the writer has published. A frame whose header is damaged is passed over: its offsets are a gap.
"""

import os
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from embermq.formats.segments import (
    ALIGNMENT,
    END_BYTES,
    END_NAME,
    FILE_BYTES,
    FRAME_BYTES,
    FRAME_MAGIC,
    FrameHead,
    LogEnd,
    SegmentError,
    SegmentHead,
    decode_end,
    decode_frame_head,
    decode_segment_head,
    segment_name,
    segment_number,
)

WINDOW_BYTES = 64 * 1024
"""Read at once to look at headers."""
INDEX_BYTES = 64 * 1024
"""About so far apart are the frames that the index of a file knows."""
OPEN_FILES_MAX = 8
SETTLED_NS = 100_000_000
"""The kernel's time stamps of folders are coarser than that."""
END_TRIES = 100
"""Reading the end again while it is being written."""


class Extent(Struct, frozen=True):
    """Offsets [start, end) and the bytes of the bodies that are kept."""

    start_offset: int
    end_offset: int
    body_bytes: int


class Frame(Struct, frozen=True, gc=False):
    """A frame and where it stands: the number of its file and its position in it, in bytes."""

    number: int
    position: int
    head: FrameHead


class _OpenFile:
    """A segment file that is being read, with a sparse index of its frames."""

    __slots__ = ("descriptor", "indexed_to", "offsets", "positions")

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.offsets: list[int] = []
        self.positions: list[int] = []
        self.indexed_to = FILE_BYTES

    def close(self) -> None:
        os.close(self.descriptor)


class SegmentReader:
    """The log in `folder`. For one thread; each has its own. A folder that is not there yet is an empty log.

    `salvages`: the frames of a file whose header is damaged are read all the same, since they say their offsets
    themselves; `body_bytes` of the extent is not to be relied upon then.
    """

    def __init__(self, folder: Path, *, salvages: bool = False) -> None:
        self._folder = folder
        self._salvages = salvages
        self._end_descriptor = -1
        self._listed_ns = -1
        self._heads: list[SegmentHead] = []
        self._open: dict[int, _OpenFile] = {}
        self._next: tuple[int, int, int] = (-1, 0, 0)
        """(offset, file, position) where the last reading stopped: the next one often begins there."""

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
        if self._end_descriptor >= 0:
            os.close(self._end_descriptor)
            self._end_descriptor = -1
        self._heads, self._listed_ns = [], -1

    def end(self) -> LogEnd | None:
        """Up to where the log may be read; None when there is no log yet."""
        if self._end_descriptor < 0:
            try:
                self._end_descriptor = os.open(self._folder / END_NAME, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        for _ in range(END_TRIES):
            end = decode_end(os.pread(self._end_descriptor, END_BYTES, 0))
            if end is not None:
                return end
        return None

    def segments(self) -> list[SegmentHead]:
        """The files that are there, in order. Raises SegmentError for one that cannot be understood."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if changed_ns != self._listed_ns:
            known = {head.number: head for head in self._heads}
            numbers = sorted(filter(lambda one: one >= 0, map(segment_number, os.listdir(self._folder))))
            heads: list[SegmentHead] = []
            for number in numbers:
                with suppress(FileNotFoundError):  # trimmed in this moment
                    head = known.get(number) or self._found_head(number)
                    heads += () if head is None else (head,)
            for number in [number for number in self._open if number not in set(numbers)]:
                self._open.pop(number).close()
            is_settled = (
                time.time_ns() - changed_ns > SETTLED_NS
            )  # else it may change within the same time stamp
            self._heads, self._listed_ns = heads, changed_ns if is_settled else -1
        return self._heads

    def extent(self) -> Extent | None:
        """What the log holds now; None when there is no log yet."""
        end = self.end()
        if end is None:
            return None
        heads = self.segments()
        if not heads:
            return Extent(end.offset, end.offset, 0)
        start = min(heads[0].base_offset, end.offset)
        return Extent(start, end.offset, max(0, end.bytes_total - heads[0].bytes_before))

    def frames(self, from_offset: int) -> Iterator[Frame]:
        """Frames with records, from the one that holds `from_offset` or the first behind it, up to the end."""
        end = self.end()
        if end is None or from_offset >= end.offset:
            return
        for head in self._segments_from(from_offset):
            if head.number > end.number or head.base_offset >= end.offset:
                return
            stop = end.position if head.number == end.number else None
            with suppress(FileNotFoundError):
                yield from self._frames_of(
                    head.number, self._position_for(head, from_offset), stop, from_offset
                )

    def body(self, frame: Frame) -> bytes:
        """The records of a frame; fewer bytes than it has when the file is cut."""
        opened = self._file(frame.number)
        return os.pread(opened.descriptor, frame.head.body_bytes, frame.position + FRAME_BYTES)

    def state(self, frame: Frame) -> bytes:
        """What a frame changes beside the records; not checked."""
        opened = self._file(frame.number)
        at = frame.position + FRAME_BYTES + frame.head.body_bytes
        return os.pread(opened.descriptor, frame.head.state_bytes, at)

    def remember(self, frame: Frame) -> None:
        """The next reading will begin behind this frame."""
        self._next = (frame.head.end_offset, frame.number, frame.position + frame.head.size)

    def offset_at(self, time_ms: int) -> int:
        """The first offset committed at or after `time_ms`; the end when there is none, 0 without a log."""
        end = self.end()
        if end is None:
            return 0
        heads = self.segments()
        index = max(0, bisect_right([head.created_ms for head in heads], time_ms) - 1)
        for frame in self.frames(heads[index].base_offset if heads else 0):
            if frame.head.committed_ms >= time_ms:
                return frame.head.base_offset
        return end.offset

    def bytes_before(self, number: int) -> int:
        """Bytes of all bodies below a file, or below the end when it is not there."""
        for head in self.segments():
            if head.number == number:
                return head.bytes_before
        end = self.end()
        return end.bytes_total if end is not None else 0

    def walk(self, number: int, position: int, stop: int | None = None) -> Iterator[Frame]:
        """Every frame of a file from `position` on, those without records too. Raises FileNotFoundError."""
        opened = self._file(number)
        size = os.fstat(opened.descriptor).st_size
        stop = size if stop is None else min(stop, size)
        window, window_at = b"", 0
        while position + FRAME_BYTES <= stop:
            if not window_at <= position <= window_at + len(window) - FRAME_BYTES:
                window, window_at = os.pread(opened.descriptor, WINDOW_BYTES, position), position
            head = decode_frame_head(window, position - window_at)
            if head is not None and position + head.size <= stop:
                yield Frame(number, position, head)
                position += head.size
            else:
                found = self._next_frame(opened.descriptor, position + ALIGNMENT, stop)
                if found is None:
                    return
                position = found

    def _segments_from(self, offset: int) -> list[SegmentHead]:
        heads = self.segments()
        first = bisect_right([head.base_offset for head in heads], offset) - 1
        # Files without records share their base offset with the next one.
        while first > 0 and heads[first - 1].base_offset == heads[first].base_offset:
            first -= 1
        return heads[max(0, first) :]

    def _frames_of(self, number: int, position: int, stop: int | None, from_offset: int) -> Iterator[Frame]:
        for frame in self.walk(number, position, stop):
            if frame.head.record_count and frame.head.end_offset > from_offset:
                yield frame

    def _position_for(self, head: SegmentHead, offset: int) -> int:
        """Where to begin in a file to find an offset."""
        if self._next[0] == offset and self._next[1] == head.number:
            return self._next[2]
        if offset <= head.base_offset:
            return FILE_BYTES
        opened = self._file(head.number)
        if not opened.offsets or opened.offsets[-1] <= offset:
            self._extend_index(head.number, opened, offset)
        index = bisect_right(opened.offsets, offset) - 1
        return opened.positions[index] if index >= 0 else FILE_BYTES

    def _extend_index(self, number: int, opened: _OpenFile, offset: int) -> None:
        end = self.end()
        stop = end.position if end is not None and end.number == number else None
        for frame in self.walk(number, opened.indexed_to, stop):
            if not opened.positions or frame.position - opened.positions[-1] >= INDEX_BYTES:
                opened.offsets.append(frame.head.base_offset)
                opened.positions.append(frame.position)
            opened.indexed_to = frame.position + frame.head.size
            if frame.head.base_offset > offset:
                return

    def _next_frame(self, descriptor: int, position: int, stop: int) -> int | None:
        """Behind a damaged header: the next position at which a frame begins."""
        while position < stop:
            window = os.pread(descriptor, WINDOW_BYTES + FRAME_BYTES, position)
            at = window.find(FRAME_MAGIC)
            while 0 <= at < WINDOW_BYTES:
                if (position + at) % ALIGNMENT == 0 and decode_frame_head(window, at) is not None:
                    return position + at
                at = window.find(FRAME_MAGIC, at + 1)
            position += WINDOW_BYTES
        return None

    def _file(self, number: int) -> _OpenFile:
        opened = self._open.pop(number, None)
        if opened is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._open.pop(next(iter(self._open))).close()
            opened = _OpenFile(self._folder / segment_name(number))
        self._open[number] = opened  # the one that was used last stands last
        return opened

    def _found_head(self, number: int) -> SegmentHead | None:
        """What the header of a file says, or its first frame; None for one with nothing that could be read."""
        try:
            return self._read_head(number)
        except SegmentError:
            if not self._salvages:
                raise
        frame = next(self.walk(number, FILE_BYTES), None)
        if frame is None:
            return None
        return SegmentHead(0, number, frame.head.base_offset, 0, frame.head.committed_ms)

    def _read_head(self, number: int) -> SegmentHead:
        path = self._folder / segment_name(number)
        try:
            head = decode_segment_head(os.pread(self._file(number).descriptor, FILE_BYTES, 0))
        except SegmentError as error:
            raise SegmentError(f"{path}: {error}") from error
        if head.number != number:
            raise SegmentError(f"{path} says that it is file {head.number}")
        return head
