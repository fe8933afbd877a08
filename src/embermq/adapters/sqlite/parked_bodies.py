"""Parked bodies in parked.db."""

import sqlite3
from importlib.resources import files
from pathlib import Path

from embermq.adapters.sqlite.connection import open_writer, to_store_error
from embermq.ports.parked_bodies import ParkedBodies, ParkedLog

FILE_NAME = "parked.db"


class SqliteParkedBodies(ParkedBodies):
    """See the port. The file is made when something is parked for the first time."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME
        self._connection: sqlite3.Connection | None = None

    def put(self, generation: int, records: list[tuple[int, bytes]], next_offset: int) -> None:
        connection = self._open(create=True)
        assert connection is not None
        try:
            connection.execute("BEGIN IMMEDIATE")
            added = 0
            for offset, record in records:
                row = (generation, offset, record)
                if connection.execute("INSERT OR IGNORE INTO parked_record VALUES (?, ?, ?)", row).rowcount:
                    added += len(record)
            connection.execute(
                "INSERT INTO parked_log VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET"
                " next_offset = MAX(next_offset, ?2), body_bytes = body_bytes + ?3",
                (generation, next_offset, added),
            )
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise to_store_error(error, "cannot park records") from error

    def get(self, generation: int, offset: int) -> bytes | None:
        connection = self._open()
        if connection is None:
            return None
        row = connection.execute(
            'SELECT record FROM parked_record WHERE generation = ? AND "offset" = ?', (generation, offset)
        ).fetchone()
        return None if row is None else bytes(row[0])

    def logs(self) -> list[ParkedLog]:
        connection = self._open()
        if connection is None:
            return []
        return [ParkedLog(*row) for row in connection.execute("SELECT * FROM parked_log")]

    def drop(self, generation: int, below_offset: int) -> int:
        return self._delete(generation, below_offset)

    def drop_oldest(self, generation: int, body_bytes: int) -> int:
        connection = self._open()
        if connection is None:
            return 0
        freed = 0
        below = 0
        rows = connection.execute(
            'SELECT "offset", LENGTH(record) FROM parked_record WHERE generation = ? ORDER BY "offset"',
            (generation,),
        )
        for offset, size in rows:
            if freed >= body_bytes:
                break
            freed += size
            below = offset + 1
        rows.close()
        return self._delete(generation, below)

    def _delete(self, generation: int, below_offset: int) -> int:
        connection = self._open()
        if connection is None:
            return 0
        connection.execute("BEGIN IMMEDIATE")
        count = connection.execute(
            'DELETE FROM parked_record WHERE generation = ? AND "offset" < ?', (generation, below_offset)
        ).rowcount
        left = connection.execute(
            "SELECT SUM(LENGTH(record)) FROM parked_record WHERE generation = ?", (generation,)
        ).fetchone()[0]
        if left:
            connection.execute(
                "UPDATE parked_log SET body_bytes = ? WHERE generation = ?", (left, generation)
            )
        else:
            connection.execute("DELETE FROM parked_log WHERE generation = ?", (generation,))
        connection.execute("COMMIT")
        return int(count)

    def close(self) -> None:
        """Release the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self, *, create: bool = False) -> sqlite3.Connection | None:
        if self._connection is None and (create or self._path.exists()):
            self._connection = open_writer(self._path, synchronous="FULL")
            self._connection.executescript(files(__package__).joinpath("parked.sql").read_text())
        return self._connection
