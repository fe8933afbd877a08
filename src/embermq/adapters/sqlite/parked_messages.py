"""Messages kept aside for applications, in broker.db."""

import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from embermq.adapters.sqlite.connection import check_user_version, open_writer, to_store_error
from embermq.model.parked_message import ParkedChange, ParkedMessage, ParkedStage, ParkedState, ParkedWrite
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.parked_bodies import ParkedBodies, ParkedLog
from embermq.ports.parked_messages import ParkedFound, ParkedMessages

FILE_NAME = "parked.db"
VERSION = 1


class SqliteParkedBodies(ParkedBodies):
    """See the port. The file is made when something is parked for the first time."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME
        self._connection: sqlite3.Connection | None = None

    def put(self, generation: int, records: list[tuple[int, bytes]], next_offset: int) -> None:
        self._open(create=True)
        with self._transaction("cannot park records") as connection:
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

    def get(self, generation: int, offset: int) -> bytes | None:
        rows = self._rows(
            'SELECT record FROM parked_record WHERE generation = ? AND "offset" = ?', generation, offset
        )
        return bytes(rows[0][0]) if rows else None

    def logs(self) -> list[ParkedLog]:
        return [ParkedLog(*row) for row in self._rows("SELECT * FROM parked_log")]

    def drop(self, generation: int, below_offset: int) -> int:
        return self._delete(generation, below_offset)

    def drop_oldest(self, generation: int, body_bytes: int) -> int:
        freed = 0
        below = 0
        for offset, size in self._rows(
            'SELECT "offset", LENGTH(record) FROM parked_record WHERE generation = ? ORDER BY "offset"',
            generation,
        ):
            if freed >= body_bytes:
                break
            freed += size
            below = offset + 1
        return self._delete(generation, below)

    def _delete(self, generation: int, below_offset: int) -> int:
        if self._open() is None:
            return 0
        with self._transaction("cannot remove parked records") as connection:
            count, size = connection.execute(
                "SELECT COUNT(*), COALESCE(SUM(LENGTH(record)), 0) FROM parked_record"
                ' WHERE generation = ? AND "offset" < ?',
                (generation, below_offset),
            ).fetchone()
            connection.execute(
                'DELETE FROM parked_record WHERE generation = ? AND "offset" < ?', (generation, below_offset)
            )
            connection.execute(
                "UPDATE parked_log SET body_bytes = body_bytes - ? WHERE generation = ?", (size, generation)
            )
            connection.execute(
                "DELETE FROM parked_log WHERE generation = ?1"
                " AND NOT EXISTS (SELECT * FROM parked_record WHERE generation = ?1)",
                (generation,),
            )
        return int(count)

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """All or nothing; a failed one leaves the connection fit for the next. Raises StoreError."""
        connection = self._open()
        assert connection is not None
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise to_store_error(error, doing) from error

    def _rows(self, statement: str, *arguments: int) -> list[tuple[Any, ...]]:
        connection = self._open()
        if connection is None:
            return []
        try:
            return connection.execute(statement, arguments).fetchall()
        except sqlite3.Error as error:
            raise to_store_error(error, "cannot read parked records") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self, *, create: bool = False) -> sqlite3.Connection | None:
        if self._connection is None and (create or self._path.exists()):
            connection = open_writer(self._path, synchronous="FULL")
            try:
                check_user_version(connection, FILE_NAME, VERSION)
                connection.executescript(files(__package__).joinpath("parked.sql").read_text())
            except StoreUnavailable:
                connection.close()
                raise
            except sqlite3.Error as error:
                connection.close()
                raise to_store_error(error, f"cannot open {self._path}") from error
            self._connection = connection
        return self._connection


_STATE = "generation, number, stage, state, packet_id, qos"
_REST = "parked_ms, attempts, retain, identifiers, topic, payload_bytes"


class SqliteParkedMessages(ParkedMessages):
    """See the port."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def load(self) -> list[ParkedState]:
        rows = self._rows(f"SELECT {_STATE} FROM parked_message ORDER BY generation, number", ())
        return [ParkedState(*row) for row in rows]

    def read(self, generation: int, numbers: Sequence[int], bytes_max: int, then: ParkedFound) -> None:
        found: dict[int, ParkedMessage | None] = {}
        size, record = 0, "record" if bytes_max else "x''"
        try:
            for number in numbers:
                rows = self._rows(
                    f"SELECT {_STATE}, {_REST}, {record} FROM parked_message"
                    " WHERE generation = ? AND number = ? AND stage <> ?",
                    (generation, number, ParkedStage.DELETED),
                )
                message = found[number] = _message(rows[0]) if rows else None
                size += len(message.record) if message is not None else 0
                if 0 < bytes_max <= size:
                    break
        except StoreError as error:
            then(error)
        else:
            then(found)

    def _rows(self, statement: str, arguments: tuple[int, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, arguments).fetchall()
        except sqlite3.Error as error:
            raise to_store_error(error, "cannot read parked messages") from error


def apply_parked(connection: sqlite3.Connection, writes: Iterable[ParkedWrite]) -> None:
    """Within the tick's transaction."""
    run = connection.execute
    for write in writes:
        if isinstance(write, ParkedMessage):
            at, ids = write.at, write.identifiers
            run(
                "INSERT OR REPLACE INTO parked_message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(at.generation, at.number, at.stage, at.state, at.packet_id, at.qos),
                    *(write.parked_ms, write.attempts, write.retain, struct.pack(f">{len(ids)}I", *ids)),
                    *(write.topic, write.payload_bytes, write.record),
                ),
            )
        elif isinstance(write, ParkedChange):
            at = write.at
            run(
                "UPDATE parked_message SET stage = ?, state = ?, packet_id = ? WHERE generation = ? AND number = ?",
                (at.stage, at.state, at.packet_id, at.generation, at.number),
            )
            if at.stage == ParkedStage.DELETED:
                run(
                    "UPDATE parked_message SET record = x'', topic = '', payload_bytes = 0, identifiers = x''"
                    " WHERE generation = ? AND number = ?",
                    (at.generation, at.number),
                )
        else:
            run(
                "DELETE FROM parked_message WHERE generation = ? AND number = ?",
                (write.generation, write.number),
            )


def _message(row: Sequence[Any]) -> ParkedMessage:
    parked_ms, attempts, retain, ids, topic, payload_bytes, record = row[6:]
    identifiers = struct.unpack(f">{len(ids) // 4}I", ids)
    return ParkedMessage(
        ParkedState(*row[:6]),
        parked_ms,
        attempts,
        bool(retain),
        identifiers,
        topic,
        payload_bytes,
        bytes(record),
    )
