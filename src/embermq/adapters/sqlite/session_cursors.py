"""Cursors of sessions in broker.db, beside the log."""

import sqlite3
import struct

from embermq.model.session_cursor import SessionCursor
from embermq.ports.session_cursors import SessionCursors


class SqliteSessionCursors(SessionCursors):
    """See the port."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def load(self) -> dict[int, SessionCursor]:
        rows = self._connection.execute("SELECT generation, queued_from, in_flight FROM session_cursor")
        return {
            generation: SessionCursor(queued_from, struct.unpack(f">{len(in_flight) // 8}q", in_flight))
            for generation, queued_from, in_flight in rows
        }


def apply_cursors(connection: sqlite3.Connection, cursors: dict[int, SessionCursor | None]) -> None:
    """Inside the caller's transaction."""
    put, gone = [], []
    for generation, cursor in cursors.items():
        if cursor is None:
            gone.append((generation,))
        else:
            in_flight = struct.pack(f">{len(cursor.open)}q", *cursor.open)
            put.append((generation, cursor.queued_from, in_flight))
    connection.executemany("INSERT OR REPLACE INTO session_cursor VALUES (?, ?, ?)", put)
    connection.executemany("DELETE FROM session_cursor WHERE generation = ?", gone)
