"""Accounts in users.db."""

import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from secrets import token_bytes
from threading import Lock

from embermq.adapters.sqlite.connection import BUSY_TIMEOUT_MS, to_store_error
from embermq.formats.stored_version import version_refusal
from embermq.model.client_type import ClientType
from embermq.ports.errors import StoreUnavailable
from embermq.ports.users import CHANGES_MAX, Changes, User, Users

VERSION = 2
"""Of users.db. Raised with each file `users-N.sql`, which makes version N from the one before."""
_SETTINGS = f"""
PRAGMA busy_timeout = {BUSY_TIMEOUT_MS};
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA cache_size = -256;
"""
COLUMNS = "name, password_hash, client_type, disabled, created_ms, version, scram"
SECRET_BYTES = 32
_ADD = (
    f"INSERT INTO users ({COLUMNS}) "
    "VALUES (?, ?, ?, ?, ?, (SELECT coalesce(max(seq), 0) + 1 FROM changes), ?) "
    "ON CONFLICT DO NOTHING RETURNING name"
)
_UPDATE = (
    "UPDATE users SET password_hash = ?, client_type = ?, disabled = ?, scram = ?, "
    "version = version + 1 "
    "WHERE name = ? RETURNING name"
)
_Values = tuple[str | int, ...]
_Row = tuple[str, str, int, int, int, int, str]


class SqliteUsers(Users):
    """See the port. One connection, used by one thread at a time; a change is synced before it returns."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, readable by its owner alone; raises StoreError."""
        self._lock = Lock()
        with self._statement(f"cannot open {path}"):
            _create_private(path)
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                self._connection.executescript(_SETTINGS)
                _prepare(self._connection, path)
            except (sqlite3.Error, StoreUnavailable):
                self._connection.close()
                raise

    def find(self, name: str) -> User | None:
        rows = self._run("cannot read users", f"SELECT {COLUMNS} FROM users WHERE name = ?", (name,))
        return _user(rows[0]) if rows else None

    def find_many(self, names: Collection[str]) -> dict[str, User]:
        marks = ",".join("?" * len(names))
        statement = f"SELECT {COLUMNS} FROM users WHERE name IN ({marks})"
        return {row[0]: _user(row) for row in self._run("cannot read users", statement, tuple(names))}

    def add(self, user: User) -> bool:
        return bool(self._run("cannot add a user", _ADD, _added(user)))

    def update(self, user: User) -> bool:
        return bool(self._run("cannot change a user", _UPDATE, _updated(user)))

    def import_all(self, users: Iterable[User], *, replace: bool) -> int:
        count = 0
        with self._statement("cannot import users"):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for user in users:
                    done = self._connection.execute(_ADD, _added(user)).fetchall()
                    if not done and replace:
                        done = self._connection.execute(_UPDATE, _updated(user)).fetchall()
                    count += len(done)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        return count

    def remove(self, name: str) -> bool:
        return bool(
            self._run("cannot remove a user", "DELETE FROM users WHERE name = ? RETURNING name", (name,))
        )

    def is_empty(self) -> bool:
        return not self._run("cannot read users", f"SELECT {COLUMNS} FROM users LIMIT 1", ())

    def all(self) -> list[User]:
        statement = f"SELECT {COLUMNS} FROM users ORDER BY name"
        return [_user(row) for row in self._run("cannot read users", statement, ())]

    def replace_hash(self, name: str, before: str, after: str) -> bool:
        statement = "UPDATE users SET password_hash = ? WHERE name = ? AND password_hash = ? RETURNING name"
        return bool(self._run("cannot change a user", statement, (after, name, before)))

    def imported_hashes(self) -> list[str]:
        with self._statement("cannot read users"):
            rows: list[tuple[str]] = self._connection.execute(
                "SELECT password_hash FROM users WHERE password_hash LIKE '$6$%' OR password_hash LIKE '$7$%'"
            ).fetchall()
        return [text for (text,) in rows]

    def changes(self, after_seq: int) -> Changes:
        with self._statement("cannot read changes of users"):
            rows: list[tuple[int, str]] = self._connection.execute(
                "SELECT seq, name FROM changes WHERE seq > ? ORDER BY seq LIMIT ?", (after_seq, CHANGES_MAX)
            ).fetchall()
        if not rows:
            return Changes(after_seq, (), complete=True)
        names = tuple(dict.fromkeys(name for _, name in rows))
        return Changes(rows[-1][0], names, complete=rows[0][0] == after_seq + 1)

    def newest_change(self) -> int:
        with self._statement("cannot read changes of users"):
            rows: list[tuple[int]] = self._connection.execute(
                "SELECT coalesce(max(seq), 0) FROM changes"
            ).fetchall()
        return rows[0][0]

    def secret(self) -> bytes:
        with self._statement("cannot read the secret of users"):
            if not (rows := self._secrets()):
                self._connection.execute(
                    "INSERT INTO secrets VALUES ('scram', ?) ON CONFLICT DO NOTHING",
                    (token_bytes(SECRET_BYTES),),
                )
                rows = self._secrets()
        return rows[0][0]

    def _secrets(self) -> list[tuple[bytes]]:
        return self._connection.execute("SELECT value FROM secrets WHERE name = 'scram'").fetchall()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _run(self, doing: str, statement: str, values: _Values) -> list[_Row]:
        with self._statement(doing):
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _statement(self, doing: str) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise to_store_error(error, doing) from error


def _create_private(path: Path) -> None:
    """SQLite gives its side files the mode of the database file, so the mode is set before it opens it."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise sqlite3.OperationalError(error.strerror) from error


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file, unless another process is doing so. Raises StoreUnavailable for a version that
    this program does not open."""
    if _checked_version(connection, path) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    if not _checked_version(connection, path):
        for statement in _statements(files(__package__).joinpath("users.sql").read_text()):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _checked_version(connection: sqlite3.Connection, path: Path) -> int:
    """0 for a new file."""
    is_empty = connection.execute("SELECT 1 FROM sqlite_schema").fetchone() is None
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if not (is_empty and version == 0) and (problem := version_refusal(str(path), version, VERSION)):
        raise StoreUnavailable(problem)
    return version


def _statements(script: str) -> Iterator[str]:
    """`executescript` would commit what is open, so the statements of a script go one by one."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _added(user: User) -> _Values:
    return (
        user.name,
        user.password_hash,
        int(user.client_type),
        int(user.disabled),
        user.created_ms,
        user.scram,
    )


def _updated(user: User) -> _Values:
    return user.password_hash, int(user.client_type), int(user.disabled), user.scram, user.name


def _user(row: _Row) -> User:
    name, password_hash, client_type, disabled, created_ms, version, scram = row
    return User(name, password_hash, ClientType(client_type), bool(disabled), created_ms, version, scram)
