"""A file of the pipeline: opened for writing by one query alone, with its progress beside its effects."""

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from embermq.formats.stored_version import PIPELINE_FILES, version_refusal
from embermq.pipeline.errors import OtherVersionError

BUSY_TIMEOUT_MS = 5_000
WAL_BYTES_MAX = 64 * 1024 * 1024


class SinkFile:
    """The one writing connection of a sink's file: WAL, synchronous FULL, explicit transactions.

    It is made on the first use, by whichever thread Spark calls the sink from; calls never overlap.
    """

    def __init__(self, path: Path, reader: str, *schemas: tuple[str, str]) -> None:
        """`reader` names the progress row; `schemas` are (package, file) of the SQL scripts to apply.

        Raises OtherVersionError and changes nothing when the file is of a version that this program does not open.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self.reader = reader
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(path.name, schemas)
        except BaseException:
            self.connection.close()
            raise

    def _prepare(self, name: str, schemas: Iterable[tuple[str, str]]) -> None:
        run = self.connection.executescript
        run(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        is_empty = self.connection.execute("SELECT 1 FROM sqlite_schema").fetchone() is None
        version: int = self.connection.execute("PRAGMA user_version").fetchone()[0]
        if is_empty and version == 0:
            # Before the first table: who finds a table finds a version, also after a crash, and beside another process.
            self.connection.execute(f"PRAGMA user_version = {PIPELINE_FILES}")
        elif problem := version_refusal(name, version, PIPELINE_FILES):
            raise OtherVersionError(problem)
        run(
            f"""
            PRAGMA journal_mode = WAL;
            PRAGMA synchronous = FULL;
            PRAGMA temp_store = MEMORY;
            PRAGMA journal_size_limit = {WAL_BYTES_MAX};
            """
        )
        own = (("embermq.formats", "progress.sql"), (__package__ or "", "counted.sql"))
        for package, script in (*own, *schemas):
            run(files(package).joinpath(script).read_text())

    def position(self) -> int | None:
        """Every record below it has had its effect here; None before the first."""
        row = self.connection.execute(
            "SELECT next_offset FROM progress WHERE reader = ?", (self.reader,)
        ).fetchone()
        return None if row is None else int(row[0])

    def positions(self) -> dict[int, int]:
        """The same of a log in Kafka, by partition; those that have not begun are not there."""
        rows = self.connection.execute(
            "SELECT reader, next_offset FROM progress WHERE reader GLOB ?", (f"{self.reader};*",)
        )
        return {int(reader.rpartition(";")[2]): int(offset) for reader, offset in rows.fetchall()}

    def begin_at(self, offset: int, partition: int | None = None) -> None:
        """Say where this reader starts, so that the log keeps what it needs; no effect when it has started.

        `partition` is of a log in Kafka, None for the embedded one.
        """
        self.connection.execute(
            "INSERT OR IGNORE INTO progress VALUES (?, ?, ?)", (self._key(partition), offset, _now_ms())
        )

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, on disk when it returns."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def move_to(self, next_offset: int, partition: int | None = None) -> None:
        """Inside a transaction: everything below `next_offset` is done. Never moves back."""
        self.connection.execute(
            "INSERT INTO progress VALUES (?1, ?2, ?3) ON CONFLICT (reader) DO UPDATE SET"
            " next_offset = MAX(next_offset, excluded.next_offset), updated_ms = excluded.updated_ms",
            (self._key(partition), next_offset, _now_ms()),
        )

    def _key(self, partition: int | None) -> str:
        return self.reader if partition is None else f"{self.reader};{partition}"

    def copy(self, next_offset: int | None, totals: Mapping[str, int]) -> None:
        """Take over, in a transaction of its own, what a store elsewhere has confirmed, also when that is less."""
        with self.transaction() as connection:
            connection.execute("DELETE FROM progress WHERE reader = ?", (self.reader,))
            connection.execute("DELETE FROM counted WHERE reader = ?", (self.reader,))
            if next_offset is not None:
                self.move_to(next_offset)
                self.count(**totals)

    def count(self, **amounts: int) -> None:
        """Inside a transaction: add to the totals that status shows."""
        self.connection.executemany(
            "INSERT INTO counted VALUES (?1, ?2, ?3) ON CONFLICT (reader, what) DO UPDATE SET"
            " total = total + excluded.total",
            [(self.reader, what, amount) for what, amount in amounts.items() if amount],
        )

    def counts(self) -> dict[str, int]:
        """Totals over the life of this file."""
        rows = self.connection.execute("SELECT what, total FROM counted WHERE reader = ?", (self.reader,))
        return {what: int(total) for what, total in rows.fetchall()}

    def close(self) -> None:
        self.connection.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
