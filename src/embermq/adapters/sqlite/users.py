"""Accounts in users.db."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from threading import Lock

from embermq.adapters.sqlite.connection import BUSY_TIMEOUT_MS, to_store_error
from embermq.model.client_type import ClientType
from embermq.ports.users import User, Users

_Row = tuple[str, str, int, int, int]


class SqliteUsers(Users):
    """See the port. One connection, used by one thread at a time; a change is synced before it returns."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, readable by its owner alone; raises StoreError."""
        self._lock = Lock()
        with self._statement(f"cannot open {path}"):
            _create_private(path)
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                self._connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
                self._connection.executescript(files(__package__).joinpath("users.sql").read_text())
            except sqlite3.Error:
                self._connection.close()
                raise

    def find(self, name: str) -> User | None:
        """See the port."""
        rows = self._run("cannot read users", "SELECT * FROM users WHERE name = ?", (name,))
        return _user(rows[0]) if rows else None

    def add(self, user: User) -> bool:
        """See the port."""
        statement = "INSERT INTO users VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING name"
        values = (user.name, user.password_hash, int(user.client_type), int(user.disabled), user.created_ms)
        return bool(self._run("cannot add a user", statement, values))

    def update(self, user: User) -> bool:
        """See the port."""
        statement = (
            "UPDATE users SET password_hash = ?, client_type = ?, disabled = ? WHERE name = ? RETURNING name"
        )
        values = (user.password_hash, int(user.client_type), int(user.disabled), user.name)
        return bool(self._run("cannot change a user", statement, values))

    def remove(self, name: str) -> bool:
        """See the port."""
        return bool(
            self._run("cannot remove a user", "DELETE FROM users WHERE name = ? RETURNING name", (name,))
        )

    def all(self) -> list[User]:
        """See the port."""
        return [_user(row) for row in self._run("cannot read users", "SELECT * FROM users ORDER BY name", ())]

    def close(self) -> None:
        """See the port."""
        with self._lock:
            self._connection.close()

    def _run(self, doing: str, statement: str, values: tuple[str | int, ...]) -> list[_Row]:
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


def _user(row: _Row) -> User:
    name, password_hash, client_type, disabled, created_ms = row
    return User(name, password_hash, ClientType(client_type), bool(disabled), created_ms)
