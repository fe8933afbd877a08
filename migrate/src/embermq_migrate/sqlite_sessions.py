"""Migrated sessions into broker.db, the embedded store. The broker is down: its data directory is locked."""

import sqlite3
import struct
from pathlib import Path

from embermq.model.session import SessionRow
from embermq.model.session_writes import QueueRow
from embermq_migrate.errors import MigrationError
from embermq_migrate.session_target import ClientWrites, Known, SessionTarget

BUSY_TIMEOUT_MS = 120_000
"""Tasks write one after the other."""
INDEX = "migration_client"
_SESSION = (
    "INSERT OR IGNORE INTO session (generation, client_id, epoch, client_type, username, version, expiry_interval_s,"
    " connected, expires_ms, created_ms, certificate) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ROW = (
    'INSERT OR IGNORE INTO device_queue (generation, seq, "offset", packet_id, state, flags, expires_ms, identifiers,'
    " record) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class SqliteSessionTarget(SessionTarget):
    """See the base. With `read_only` the file may be a running broker's."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self._path = path
        try:
            mode = "ro" if read_only else "rw"
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None
            )
            try:
                self._connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
                if not read_only:
                    self._connection.execute("PRAGMA synchronous = FULL")
            except sqlite3.Error:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            raise self._told("cannot open", error) from error

    def known(self, client_ids: list[str]) -> dict[str, Known]:
        found: dict[str, Known] = {}
        run = self._connection.execute
        try:
            for client_id in client_ids:
                session = run(
                    "SELECT generation, epoch FROM session WHERE client_id = ?", (client_id,)
                ).fetchone()
                if session is not None:
                    places = run("SELECT seq, packet_id FROM device_queue WHERE generation = ?", session[:1])
                    found[client_id] = Known(session[0], session[1], dict(places))
        except sqlite3.Error as error:
            raise self._told("cannot read", error) from error
        return found

    def write(self, clients: list[ClientWrites]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for client in clients:
                if client.session is not None:
                    self._connection.execute(_SESSION, _session_values(client.session))
            for client in clients:
                self._connection.executemany(_ROW, (_row_values(row) for row, _ in client.rows))
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._told("cannot write", error) from error

    def close(self) -> None:
        self._connection.close()

    def _told(self, doing: str, error: sqlite3.Error) -> MigrationError:
        return MigrationError(f"{doing} {self._path}: {error}")


def prepare(path: Path) -> None:
    """Sessions are looked for by client id during a migration, and at no other time."""
    _run(path, f"CREATE INDEX IF NOT EXISTS {INDEX} ON session (client_id)")


def settle(path: Path) -> None:
    """The end of a migration."""
    _run(path, f"DROP INDEX IF EXISTS {INDEX}")


def _run(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        connection.execute(statement)
    except sqlite3.Error as error:
        raise MigrationError(f"cannot write {path}: {error}") from error
    finally:
        connection.close()


def _session_values(row: SessionRow) -> tuple[int | str, ...]:
    return (
        row.generation,
        row.client_id,
        row.epoch,
        int(row.client_type),
        row.username,
        row.version,
        row.expiry_interval_s,
        int(row.connected),
        row.expires_ms,
        row.created_ms,
        row.certificate,
    )


def _row_values(row: QueueRow) -> tuple[int | bytes, ...]:
    return (
        row.generation,
        row.seq,
        row.offset,
        row.packet_id,
        row.state,
        row.flags,
        row.expires_ms,
        struct.pack(f">{len(row.identifiers)}I", *row.identifiers),
        row.record,
    )
