"""Reading application logs (the pipeline's applications.db) and reader states (broker.db)."""

import sqlite3
from pathlib import Path
from typing import Any

from embermq.adapters.sqlite.connection import open_reader, to_store_error
from embermq.formats.stored_version import newer_file
from embermq.model.application_positions import ReaderPosition, StoredPositions
from embermq.model.tick_writes import ApplicationMark
from embermq.ports.application_log import ApplicationFloor, ApplicationLog
from embermq.ports.errors import StoreUnavailable
from embermq.ports.reader_positions import ReaderFound, ReaderPositions, StoredReader


class SqliteReaderPositions(ReaderPositions):
    """See the port."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def load(self, generation: int, then: ReaderFound) -> None:
        try:
            row = self._connection.execute(
                "SELECT packet_id, committed_offset, settled FROM application_position WHERE generation = ?",
                (generation,),
            ).fetchone()
            marks = self._connection.execute(
                'SELECT generation, "offset", packet_id, state'
                ' FROM application_inflight WHERE generation = ? ORDER BY "offset"',
                (generation,),
            ).fetchall()
        except sqlite3.Error as error:
            then(to_store_error(error, "cannot read where a reader stands"))
        else:
            then(StoredReader(_position(row), tuple(ApplicationMark(*mark) for mark in marks)))


def _position(row: tuple[int, int, int] | None) -> ReaderPosition | None:
    if row is None:
        return None
    packet_id, committed, settled = row
    return ReaderPosition("", packet_id, StoredPositions(committed, committed), settled=settled)


BUSY_TIMEOUT_MS = 10
"""The broker's loop reads here: it does not wait for the pipeline, it looks again."""


class SqliteApplicationLog(ApplicationLog):
    """Empty until the pipeline has made its file. What cannot be read is a StoreError."""

    def __init__(self, broker: sqlite3.Connection, applications: Path) -> None:
        self._broker = broker
        self._path = applications
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    def complete_offset(self) -> int:
        rows = self._rows("SELECT next_offset FROM progress WHERE reader = 'dispatch'", ())
        return int(rows[0][0]) if rows else 0

    def read(self, generation: int, from_offset: int, limit: int) -> list[int]:
        rows = self._rows(
            'SELECT "offset" FROM application_log WHERE generation = ? AND "offset" >= ?'
            " AND \"offset\" < COALESCE((SELECT next_offset FROM progress WHERE reader = 'dispatch'), 0)"
            ' ORDER BY "offset" LIMIT ?',
            (generation, from_offset, limit),
        )
        return [offset for (offset,) in rows]

    def floors(self) -> list[ApplicationFloor]:
        rows = self._broker.execute(
            "SELECT COALESCE(client_id, CAST(generation AS TEXT)), generation, committed_offset"
            " FROM application_position LEFT JOIN session USING (generation)"
        )
        return [ApplicationFloor(*row) for row in rows]

    def close(self) -> None:
        """Release the pipeline's file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _rows(self, statement: str, arguments: tuple[int, ...]) -> list[tuple[Any, ...]]:
        try:
            connection = self._open()
            return [] if connection is None else connection.execute(statement, arguments).fetchall()
        except sqlite3.Error as error:
            if "no such table" in str(error):
                return []  # the pipeline is just creating its tables
            raise to_store_error(error, f"cannot read {self._path.name}") from error

    def _open(self) -> sqlite3.Connection | None:
        """The file that is there now: somebody may have removed it, and the pipeline made it anew."""
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            inode = 0
        if inode != self._inode:
            self.close()
            self._inode = inode
        if self._connection is None and inode:
            connection = open_reader(self._path, busy_timeout_ms=BUSY_TIMEOUT_MS)
            try:
                problem = newer_file(self._path.name, connection.execute("PRAGMA user_version").fetchone()[0])
                if problem:
                    raise StoreUnavailable(problem)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection
