"""All files of a data directory as they stood together at one moment, while the broker and the pipeline go on.

Every file is held by a read transaction of its own before the first byte is copied. The pipeline's files and the parked
bodies are held before broker.db, and broker.db before the files of the message log: what those before have not read yet
is then in the log that is copied. Only the log's retention can come between; `Snapshot.is_whole` tells whether it has.

What is changed in files that take the place of newer ones. The newer broker.db has numbered messages of durable
queues that the older one knows nothing of, and consumers may remember their ids. A lake in another place has commits
that the older lake.db knows nothing of.
"""

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from embermq.adapters.sqlite.connection import BUSY_TIMEOUT_MS, SCHEMA, to_store_error
from embermq.adapters.sqlite.log_readers import PIPELINE_FILES
from embermq.adapters.sqlite.parked_messages import FILE_NAME as PARKED
from embermq.formats.segment_reader import SegmentReader
from embermq.formats.segments import FOLDER, SegmentError, segment_name, segment_number
from embermq.formats.stored_version import version_refusal
from embermq.ports.errors import StoreError, StoreUnavailable

SEQUENCES_SKIPPED = 1_000_000_000
"""Messages that a queue may have had since the backup: at 1,000 a second eleven days without a pause."""
GENERATIONS_SKIPPED = 1_000_000
"""Queues that may have been made since."""

_BOOTS = ("lake_version", "rule_tables")
"""Which commit of a Delta Lake table was synced last, and the boot of the machine then."""
_MARK = "restored_us"
"""Of `meta`: when it was restored, Unix microseconds; until the next start."""
_IS_THERE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'queue'"
_QUEUES = "UPDATE queue SET sequences_reserved = MAX(sequences_reserved + ?1, ?2)"
_GENERATION = """
INSERT INTO meta VALUES ('queue_generation', MAX(1 + ?1, ?2))
ON CONFLICT DO UPDATE SET value = MAX(value + ?1, ?2)
"""


def mark_restored(path: Path) -> None:
    """broker.db takes the place of a newer one from now on: its next start skips message ids. Raises StoreError."""
    try:
        with closing(sqlite3.connect(path)) as connection, connection:
            if connection.execute(_IS_THERE).fetchone() is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO meta VALUES (?, ?)", (_MARK, time.time_ns() // 1_000)
                )
    except sqlite3.Error as error:
        raise to_store_error(error, f"cannot restore {path}") from error


def forget_boot(path: Path) -> None:
    """lake.db, or rules.db, may be older than its Delta Lake tables from now on: commits behind what it knows are no
    trace of a loss of power. Raises StoreError."""
    try:
        with closing(sqlite3.connect(path)) as connection, connection:
            for table in _BOOTS:
                if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone():
                    connection.execute(f"UPDATE {table} SET boot = ''")
    except sqlite3.Error as error:
        raise to_store_error(error, f"cannot restore {path}") from error


def skip_message_ids(connection: sqlite3.Connection) -> None:
    """After a restore: no id that was given since the backup is given again, nor one that another restored broker has
    given. Numbers go on at the time of the restore, in microseconds, and no queue has as many messages. Called when
    everything that the log says of queues is applied. Raises StoreError."""
    try:
        row = connection.execute("SELECT value FROM meta WHERE name = ?", (_MARK,)).fetchone()
        if row is None:
            return
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_QUEUES, (SEQUENCES_SKIPPED, row[0]))
        connection.execute(_GENERATION, (GENERATIONS_SKIPPED, row[0] // 1_000))
        connection.execute("DELETE FROM meta WHERE name = ?", (_MARK,))
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise to_store_error(error, "cannot skip message ids in broker.db") from error


BROKER = "broker.db"
USERS = "users.db"
RULES = "rules.db"
STEP_PAGES = 1_024
STEP_BYTES = 1024 * 1024

Copied = Callable[[int], None]
"""Told the bytes that have been copied since the last call."""


class _HeldSegment(Struct, frozen=True):
    """A file of the message log; `size` bytes of it are copied."""

    file: BinaryIO
    size: int


class Snapshot:
    """Holds the files of `data_dir` until `close`; a broker on servers has neither broker.db nor a log there. Raises
    StoreError when one of them cannot be read."""

    log_start = log_end = 0

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._held: dict[str, sqlite3.Connection] = {}
        self._segments: dict[str, _HeldSegment] = {}
        try:
            for name in (*PIPELINE_FILES, PARKED, USERS, RULES):
                if (data_dir / name).exists():
                    self._hold(name)
            first = _first_file(data_dir / FOLDER)
            if (data_dir / BROKER).exists():
                self._hold(BROKER)
                applied_file, self.log_end = self._applied()
                self.log_start = self._hold_segments(first, applied_file)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Snapshot":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def names(self) -> list[str]:
        """The files that are held; broker.db first, since the log grows behind the one who reads it."""
        return sorted([*self._held, *self._segments], key=lambda name: (name != BROKER, name))

    def bytes_of(self, name: str) -> int:
        """Size of the copy of a file, in bytes."""
        if name in self._segments:
            return self._segments[name].size
        return (self._one(name, "PRAGMA page_count") or 0) * (self._one(name, "PRAGMA page_size") or 0)

    def position(self, name: str) -> int:
        """The first offset that a pipeline's file has not had, of a log in Kafka the sum over its partitions; 0 before
        its first."""
        return sum(self._positions(self._held[name], name).values())

    def lake_version(self, name: str) -> int:
        """Which commit of the lake its position is of; -1 when there is none."""
        rows = self._rows(self._held[name], name, "SELECT version FROM lake_version")
        return int(rows[0][0]) if rows else -1

    def is_whole(self) -> bool:
        """False when retention let go of records that a held file still waits for: take another one then."""
        if self.log_start < 0:
            return False
        for name in (*PIPELINE_FILES, PARKED):
            held = self._held.get(name)
            before = self._positions(held, name) if held is not None else {}
            for reader, now in self._positions_now(name).items():
                if before.get(reader, 0) < self.log_start <= now:
                    return False
        return True

    def copy(self, name: str, target: Path, copied: Copied) -> None:
        """Write the file as it stood to `target`, and let go of it."""
        if name in self._segments:
            segment = self._segments.pop(name)
            with segment.file:
                _copy_segment(segment, target, copied)
            return
        source = self._held[name]
        page_bytes = self._one(name, "PRAGMA page_size") or 0
        done = 0

        def progress(_status: int, remaining: int, total: int) -> None:
            nonlocal done
            now = (total - remaining) * page_bytes
            copied(now - done)
            done = now

        try:
            connection = sqlite3.connect(target, isolation_level=None)
            try:
                source.backup(connection, pages=STEP_PAGES, progress=progress)
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise to_store_error(error, f"cannot copy {name}") from error
        self._held.pop(name).close()

    def close(self) -> None:
        """End the transactions and close the files that the snapshot holds."""
        while self._held:
            self._held.popitem()[1].close()
        while self._segments:
            self._segments.popitem()[1].file.close()

    def _hold(self, name: str) -> None:
        connection = _open(self._data_dir / name)
        self._held[name] = connection
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error as error:
            raise to_store_error(error, f"cannot read {name}") from error

    def _hold_segments(self, first: int, applied_file: int) -> int:
        """Open the files of the message log, which stay as they are when retention removes them. Returns the first
        offset in them; -1 when one that broker.db needs has gone in this moment: of `first`, which was there before
        broker.db was held, that may not have the messages of queues."""
        folder = self._data_dir / FOLDER
        reader = SegmentReader(folder)
        try:
            heads, end = reader.segments(), reader.end()
            for head in heads:
                name = segment_name(head.number)
                file = (folder / name).open("rb")
                size = os.fstat(file.fileno()).st_size
                if end is not None and head.number == end.number:
                    size = min(size, end.position)  # what is behind it may be being written
                self._segments[f"{FOLDER}/{name}"] = _HeldSegment(file, size)
        except FileNotFoundError:
            return -1
        except (OSError, SegmentError) as error:
            raise StoreError(f"cannot read the message log: {error}") from error
        finally:
            reader.close()
        if not heads:
            return self.log_end
        is_there = heads[0].number <= max(1, applied_file) and first in (0, heads[0].number)
        return heads[0].base_offset if is_there else -1

    def _applied(self) -> tuple[int, int]:
        meta = dict(self._rows(self._held[BROKER], BROKER, "SELECT name, value FROM meta"))
        if problem := version_refusal(BROKER, int(meta.get("schema_version", 0)), SCHEMA):
            raise StoreUnavailable(problem)
        return int(meta.get("log_file", 0)), int(meta.get("log_end", 0))

    def _positions(self, connection: sqlite3.Connection, name: str) -> dict[str, int]:
        table, reader = ("parked_log", "generation") if name == PARKED else ("progress", "reader")
        if not self._rows(connection, name, f"SELECT 1 FROM sqlite_schema WHERE name = '{table}'"):
            return {}  # it is just being made
        rows = self._rows(connection, name, f"SELECT {reader}, next_offset FROM {table}")
        return {str(row[0]): int(row[1]) for row in rows}

    def _positions_now(self, name: str) -> dict[str, int]:
        if not (self._data_dir / name).exists():
            return {}
        connection = _open(self._data_dir / name)
        try:
            return self._positions(connection, name)
        finally:
            connection.close()

    def _one(self, name: str, statement: str) -> int | None:
        value: int | None = self._rows(self._held[name], name, statement)[0][0]
        return value

    def _rows(self, connection: sqlite3.Connection, name: str, statement: str) -> list[tuple[Any, ...]]:
        try:
            return connection.execute(statement).fetchall()
        except sqlite3.Error as error:
            raise to_store_error(error, f"cannot read {name}") from error


def _first_file(folder: Path) -> int:
    """Number of the first file of the message log; 0 for none."""
    try:
        numbers = map(segment_number, os.listdir(folder))
        return min((number for number in numbers if number >= 0), default=0)
    except FileNotFoundError:
        return 0


def _copy_segment(held: _HeldSegment, target: Path, copied: Copied) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    left = held.size
    with target.open("xb") as writing:
        while left and (chunk := held.file.read(min(STEP_BYTES, left))):
            writing.write(chunk)
            copied(len(chunk))
            left -= len(chunk)


def _open(path: Path) -> sqlite3.Connection:
    """For reading only, but with the right to make the side files that a file at rest has not."""
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)
        try:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            connection.execute("PRAGMA query_only = ON")
        except sqlite3.Error:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise to_store_error(error, f"cannot open {path}") from error
    return connection
