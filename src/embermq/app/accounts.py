"""Accounts as an operator handles them: what `embermq users` does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embermq.adapters.sqlite.users import SqliteUsers
from embermq.app.errors import StartError, UserError
from embermq.authentication.passwords import PasswordHashes
from embermq.authentication.scram_verifiers import UnfitForScram, make_verifiers
from embermq.model.client_type import ClientType
from embermq.ports.users import User, Users

FILE_NAME = "users.db"
TEXT_BYTES_MAX = 65_535
"""The longest name or password that a CONNECT can carry [MQTT-1.5.4]."""


def open_users(data_dir: Path) -> Users:
    """The accounts of a data directory, which is made when it is missing. Raises StartError or StoreError."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"cannot make the data directory {data_dir}: {error.strerror}") from error
    return SqliteUsers(data_dir / FILE_NAME)


class Accounts:
    """Adds, lists and removes accounts. The broker need not run; one that runs sees the change at the next CONNECT."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def add(
        self, name: str, password: bytes, client_type: ClientType, *, scram_iterations: int | None = None
    ) -> None:
        """Raise UserError for a name that is taken, or a name or password that MQTT cannot carry; and, with
        `scram_iterations`, that SCRAM cannot carry."""
        check_name(name)
        if not password:
            raise UserError("the password is empty")
        if len(password) > TEXT_BYTES_MAX:
            raise UserError(
                f"the password has {len(password)} bytes, more than the largest possible {TEXT_BYTES_MAX}"
            )
        try:
            scram = make_verifiers(name, password, scram_iterations) if scram_iterations else ""
        except UnfitForScram as error:
            raise UserError(str(error)) from None
        user = User(
            name,
            PasswordHashes().make(password),
            client_type,
            False,
            time.time_ns() // 1_000_000,
            scram=scram,
        )
        if not self._users.add(user):
            raise UserError(f"there is a user {name!r} already")

    def remove(self, name: str) -> None:
        """Raise UserError when there is no such account."""
        if not self._users.remove(name):
            raise UserError(f"there is no user {name!r}")

    def all(self) -> list[User]:
        """Every account, by name."""
        return self._users.all()


def check_name(name: str) -> None:
    """Raise UserError for what cannot be a user name [MQTT-1.5.4-2]."""
    size = len(name.encode(errors="surrogateescape"))
    if not name or size > TEXT_BYTES_MAX:
        raise UserError(f"a user name has 1 to {TEXT_BYTES_MAX} bytes, this one has {size}")
    if not name.isprintable():
        raise UserError(f"the user name {name!r} has characters that cannot be shown")


@contextmanager
def accounts_of(data_dir: Path, *, create: bool = False) -> Iterator[Accounts]:
    """The accounts of a data directory, let go at the end. Without `create` the directory must be there."""
    if not create and not data_dir.is_dir():
        raise UserError(f"there is no data directory {data_dir}")
    users = open_users(data_dir)
    try:
        yield Accounts(users)
    finally:
        users.close()
