"""Reading application logs (the pipeline's applications.db) and reader states (broker.db)."""

import sqlite3
import struct
from pathlib import Path

from embermq.adapters.sqlite.connection import open_reader
from embermq.model.tick_writes import ApplicationMark
from embermq.ports.application_log import (
    ApplicationContext,
    ApplicationEntry,
    ApplicationFloor,
    ApplicationLog,
)
from embermq.ports.errors import StoreUnavailable


class SqliteApplicationLog(ApplicationLog):
    """Empty until the pipeline has made its file."""

    def __init__(self, broker: sqlite3.Connection, applications: Path) -> None:
        self._broker = broker
        self._path = applications
        self._connection: sqlite3.Connection | None = None

    def complete_offset(self) -> int:
        connection = self._open()
        if connection is None:
            return 0
        try:
            row = connection.execute("SELECT next_offset FROM progress WHERE reader = 'dispatch'").fetchone()
        except sqlite3.OperationalError:
            return 0  # the pipeline is just creating its tables
        return int(row[0]) if row else 0

    def read(self, generation: int, from_offset: int, limit: int) -> list[ApplicationEntry]:
        connection = self._open()
        if connection is None:
            return []
        rows = connection.execute(
            'SELECT "offset", flags, identifiers FROM application_log WHERE generation = ? AND "offset" >= ?'
            " AND \"offset\" < COALESCE((SELECT next_offset FROM progress WHERE reader = 'dispatch'), 0)"
            ' ORDER BY "offset" LIMIT ?',
            (generation, from_offset, limit),
        )
        return [
            ApplicationEntry(offset, flags & 3, bool(flags & 4), struct.unpack(f">{len(ids) // 4}I", ids))
            for offset, flags, ids in rows
        ]

    def context(self, generation: int) -> ApplicationContext | None:
        row = self._broker.execute(
            "SELECT floor_offset FROM application_context WHERE generation = ?", (generation,)
        ).fetchone()
        if row is None:
            return None
        marks = self._broker.execute(
            'SELECT generation, "offset", packet_id, state FROM application_inflight WHERE generation = ?'
            ' ORDER BY "offset"',
            (generation,),
        )
        return ApplicationContext(row[0], tuple(ApplicationMark(*mark) for mark in marks))

    def floors(self) -> list[ApplicationFloor]:
        rows = self._broker.execute("SELECT client_id, generation, floor_offset FROM application_context")
        return [ApplicationFloor(*row) for row in rows]

    def close(self) -> None:
        """Release the pipeline's file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection | None:
        if self._connection is None and self._path.exists():
            try:
                self._connection = open_reader(self._path)
            except StoreUnavailable:
                return None
        return self._connection
