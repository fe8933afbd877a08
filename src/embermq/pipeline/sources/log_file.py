"""The message log as a file: bounds, planning and bodies. SQLite only, no Spark, so that status can use it too."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

BUSY_TIMEOUT_MS = 5_000
PAGE_BYTES = 4 * 1024 * 1024
"""Bodies fetched by one read transaction; a single larger body is fetched alone."""
PAGE_ROWS = 2_000


class LogBounds(Struct, frozen=True):
    """`first` is the oldest offset that is still there, `end` the one after the newest; equal when it is empty."""

    first: int
    end: int


class LogBatch(Struct, frozen=True, gc=False):
    """One row of log_batch: `count` records from offset `base` on."""

    base: int
    count: int
    body: bytes


class BatchSize(Struct, frozen=True, gc=False):
    """A row of log_batch without its body."""

    base: int
    count: int
    body_bytes: int


_LAST = "SELECT base_offset + record_count FROM log_batch ORDER BY base_offset DESC LIMIT 1"
_FIRST = "SELECT base_offset FROM log_batch ORDER BY base_offset LIMIT 1"
_UNUSED = "SELECT value FROM meta WHERE name = 'log_end'"
_IDENTITY = "SELECT value FROM meta WHERE name = 'log_id'"
_SIZES = """
SELECT base_offset, record_count, body_bytes FROM log_batch
WHERE base_offset >= COALESCE((SELECT MAX(base_offset) FROM log_batch WHERE base_offset <= :start), 0)
  AND base_offset + record_count > :start AND base_offset < :end
ORDER BY base_offset LIMIT :rows
"""
_BYTES = "SELECT SUM(body_bytes) FROM log_batch WHERE base_offset >= ?"
_BODIES = """
SELECT base_offset, record_count, body FROM log_batch
WHERE base_offset BETWEEN ? AND ? ORDER BY base_offset
"""
_COMMITTED = """
SELECT committed_ms FROM log_batch
WHERE base_offset >= COALESCE((SELECT MAX(base_offset) FROM log_batch WHERE base_offset <= :at), 0)
  AND base_offset + record_count > :at ORDER BY base_offset LIMIT 1
"""


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

    def close(self) -> None:
        """Release the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class LogFile(BrokerFile):
    """Reads log_batch. A missing or empty file means that there is no data yet."""

    def bounds(self) -> LogBounds | None:
        """What the log holds now; None when there is no log yet."""
        end = self.end()
        if end is None:
            return None
        first = self.query(_FIRST)
        return LogBounds(first[0][0] if first else end, end)

    def end(self) -> int | None:
        """The offset after the newest record; cheap enough to ask a hundred times a second."""
        rows = self.query(_LAST)
        if rows is None:
            return None
        if not rows:  # empty, or trimmed to the last record
            rows = self.query(_UNUSED)
        return int(rows[0][0]) if rows else None

    def identity(self) -> int:
        """Which log it is, see broker.sql; 0 for one that has not been opened by a broker that gives identities."""
        rows = self.query(_IDENTITY)
        return int(rows[0][0]) if rows else 0

    def committed_ms(self, offset: int) -> int | None:
        """When the record at `offset`, or the first one after it, was committed; None when there is none."""
        rows = self.query(_COMMITTED, {"at": offset})
        return int(rows[0][0]) if rows else None

    def bounded_end(self, start: int, records_max: int, bytes_max: int) -> int:
        """Where a batch from `start` ends: at most `records_max` records and about `bytes_max` of bodies.

        A gap in the offsets counts no records. At least one record is taken when there is one.
        """
        end = self.end()
        if end is None or end <= start:
            return start
        records = size = 0
        bounded = start
        for batch in self._sizes(start, end, min(records_max, end - start)):
            begin = max(start, batch.base)
            count = batch.base + batch.count - begin
            if records and size + batch.body_bytes > bytes_max:
                return begin
            if records + count > records_max:
                return begin + records_max - records
            records += count
            size += batch.body_bytes
            bounded = begin + count
        return bounded if records else end

    def size_exceeds(self, start: int, bytes_max: int) -> bool:
        """Whether the bodies from `start` on are more than a batch may take."""
        rows = self.query(_BYTES, (start,))
        return bool(rows) and rows is not None and (rows[0][0] or 0) > bytes_max

    def split(self, start: int, end: int, pieces: int) -> list[tuple[int, int]]:
        """Cut [start, end) into at most `pieces` ranges, at batches of the log where there are any inside."""
        cuts = [start]
        bases = [batch.base for batch in self._sizes(start, end, end - start)]
        for piece in range(1, pieces):
            wanted = start + (end - start) * piece // pieces
            nearest = min(bases, key=lambda base: abs(base - wanted), default=start)
            if nearest > cuts[-1]:
                cuts.append(nearest)
        return list(zip(cuts, [*cuts[1:], end], strict=True))

    def batches(self, start: int, end: int) -> Iterator[LogBatch]:
        """The rows of log_batch that hold offsets of [start, end), in order, a bounded page at a time."""
        page: list[BatchSize] = []
        size = 0
        at = start
        while at < end:
            sizes = self._sizes(at, end, PAGE_ROWS)
            for batch in sizes:
                if page and size + batch.body_bytes > PAGE_BYTES:
                    yield from self._bodies(page)
                    page, size = [], 0
                page.append(batch)
                size += batch.body_bytes
            if len(sizes) < PAGE_ROWS:
                break
            at = sizes[-1].base + sizes[-1].count
        if page:
            yield from self._bodies(page)

    def _sizes(self, start: int, end: int, rows: int) -> list[BatchSize]:
        found = self.query(_SIZES, {"start": start, "end": end, "rows": rows}) or []
        return [BatchSize(base, count, int(size)) for base, count, size in found]

    def _bodies(self, page: list[BatchSize]) -> Iterator[LogBatch]:
        found = self.query(_BODIES, (page[0].base, page[-1].base)) or []
        return (LogBatch(*row) for row in found)
