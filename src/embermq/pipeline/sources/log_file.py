"""The message log as files, and broker.db: bounds, planning and bodies. No Spark, so that status can use it too."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import Struct

from embermq.formats.segment_reader import SegmentReader
from embermq.formats.segments import LogEnd

BUSY_TIMEOUT_MS = 5_000
CLOCK_MS = 3_600_000


class LogBounds(Struct, frozen=True):
    """`first` is the oldest offset that is still there, `end` the one after the newest; equal when it is empty."""

    first: int
    end: int


class LogFrame(Struct, frozen=True, gc=False):
    """One frame of the log: `count` records from offset `base` on. `body` is as it stands in the file."""

    base: int
    count: int
    body: bytes


def connect_readonly(path: Path) -> sqlite3.Connection | None:
    """A read-only connection in autocommit, None when there is no such file.

    Fetch every result to its end, so that no read transaction stays open and holds back a checkpoint.
    """
    if not path.exists():
        return None
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
    except sqlite3.OperationalError:
        return None  # between creation and its first page
    try:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    except sqlite3.Error as error:
        connection.close()
        if isinstance(error, sqlite3.OperationalError):
            return None
        raise
    return connection


def is_not_there(error: sqlite3.Error) -> bool:
    """Whether an error only says that the writer has not made its file or its tables yet."""
    return "no such table" in str(error) or "unable to open" in str(error)


_IDENTITY = "SELECT value FROM meta WHERE name = 'log_id'"


class BrokerFile:
    """Queries of broker.db, each with its own short transaction. A missing file or table gives None."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def query(
        self, statement: str, arguments: dict[str, int] | tuple[int | str, ...] = ()
    ) -> list[tuple[Any, ...]] | None:
        """All rows of a statement; None while there is no file or no table."""
        if self._connection is None:
            self._connection = connect_readonly(self._path)
            if self._connection is None:
                return None
        try:
            return self._connection.execute(statement, arguments).fetchall()
        except sqlite3.OperationalError as error:
            if is_not_there(error):
                self.close()  # opened anew next time
                return None
            raise

    def log_identity(self) -> int:
        """Which log it belongs to; 0 while there is no file."""
        rows = self.query(_IDENTITY)
        return int(rows[0][0]) if rows else 0

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def embedded_log_id(path: Path) -> int:
    """Which log `path`, a broker.db, belongs to; 0 while there is no file."""
    with closing(BrokerFile(path)) as broker:
        return broker.log_identity()


class Counted(Struct):
    """What a batch from `start` on has of frames below `at`: asked again, only what has come since is looked at."""

    start: int = -1
    at: int = 0
    records: int = 0
    data_bytes: int = 0


class LogFile:
    """Reads the segment files of the log in `folder`. A missing or empty folder means that there is no data yet.

    A damaged frame is a gap, a damaged header of a file keeps nobody from its frames; a damaged record is found by who
    decodes it.
    """

    def __init__(self, folder: Path) -> None:
        self._reader = SegmentReader(folder, salvages=True)

    def close(self) -> None:
        self._reader.close()

    def bounds(self) -> LogBounds | None:
        """What the log holds now; None when there is no log yet."""
        extent = self._reader.extent()
        return None if extent is None else LogBounds(extent.start_offset, extent.end_offset)

    def end(self) -> int | None:
        """The offset after the newest record; cheap enough to ask a hundred times a second."""
        end = self._reader.end()
        return None if end is None else end.offset

    def position(self) -> LogEnd | None:
        """The end with its place in the files; None when there is no log yet."""
        return self._reader.end()

    def committed_ms(self, offset: int) -> int | None:
        """When the record at `offset`, or the first one after it, was committed; None when there is none."""
        found = next(self._reader.frames(offset), None)
        return None if found is None else found.head.committed_ms

    def before(self, time_ms: int) -> int:
        """An offset below which everything was accepted before that time, give or take an hour that the clock may have
        been put back: the first one of a file, without reading it."""
        heads = self._reader.segments()
        found = heads[0].base_offset if heads else 0
        for head in heads:
            if head.created_ms >= time_ms - CLOCK_MS:
                break
            found = head.base_offset
        return found

    def since(self, time_ms: int) -> int:
        """The first offset that was committed at that time or later; the end when none was."""
        return self._reader.offset_at(time_ms)

    def bounded_end(
        self, start: int, records_max: int, bytes_max: int, counted: Counted | None = None
    ) -> int:
        """Where a batch from `start` ends: at most `records_max` records and about `bytes_max` of bodies. `counted` is
        the same object each time that it is asked of one reading.

        A gap in the offsets counts no records. At least one record is taken when there is one.
        """
        end = self.end()
        if end is None or end <= start:
            return start
        if counted is None or counted.start != start:
            counted = counted or Counted()
            counted.start = counted.at = start
            counted.records = counted.data_bytes = 0
        for frame in self._reader.frames(counted.at):
            head = frame.head
            begin = max(start, head.base_offset)
            count = head.end_offset - begin
            if counted.records and counted.data_bytes + head.body_bytes > bytes_max:
                return begin
            if counted.records + count > records_max:
                return begin + records_max - counted.records
            counted.records += count
            counted.data_bytes += head.body_bytes
            counted.at = begin + count
            if counted.records == records_max:
                break
        return counted.at if counted.records else end

    def split(self, start: int, end: int, pieces: int) -> list[tuple[int, int]]:
        """Cut [start, end) into at most `pieces` ranges, at frames of the log where there are any inside."""
        cuts = [start]
        bases: list[int] = []
        for frame in self._reader.frames(start):
            if frame.head.base_offset >= end:
                break
            bases.append(frame.head.base_offset)
        for piece in range(1, pieces):
            wanted = start + (end - start) * piece // pieces
            nearest = min(bases, key=lambda base: abs(base - wanted), default=start)
            if nearest > cuts[-1]:
                cuts.append(nearest)
        return list(zip(cuts, [*cuts[1:], end], strict=True))

    def batches(self, start: int, end: int) -> Iterator[LogFrame]:
        """The frames that hold offsets of [start, end), in order."""
        for frame in self._reader.frames(start):
            head = frame.head
            if head.base_offset >= end:
                return
            yield LogFrame(head.base_offset, head.record_count, self._reader.body(frame))
