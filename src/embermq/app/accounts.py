"""Accounts as an operator handles them: what `embermq users` does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from embermq.access.authentication.generated_passwords import hash_generated, make_password
from embermq.access.authentication.imported_hashes import FILE_BYTES_MAX, parse_password_file
from embermq.access.authentication.passwords import PasswordHashes
from embermq.access.authentication.scram import UnfitForScram, make_verifiers
from embermq.app.config import Settings
from embermq.app.errors import OptionError, UserError
from embermq.app.static_store import open_users, static_url
from embermq.model.client_type import ClientType
from embermq.ports.users import User, Users

TEXT_BYTES_MAX = 65_535
"""The longest name or password that a CONNECT can carry [MQTT-1.5.4]."""
PROBLEMS_SHOWN = 10
"""Lines of a file that are named when it cannot be imported."""


class Imported(Struct, frozen=True):
    """What an import did, or would do: users of the file, and how many of them were added, replaced, left alone."""

    users: int
    added: int
    replaced: int
    kept: int


class _Credential(Struct, frozen=True):
    """A new password: its text when it was made here, and what is kept of it."""

    password: str
    password_hash: str
    scram: str

    def __repr__(self) -> str:
        """Without any of it."""
        return "_Credential()"


class Accounts:
    """Changes and lists accounts. The broker need not run; one that runs sees the change at the next CONNECT, and ends
    within two seconds the connections of those who entered with what holds no more."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def add(
        self,
        name: str,
        password: bytes | None,
        client_type: ClientType,
        *,
        scram: bool = False,
    ) -> str:
        """Returns the password, made here when it is None, else "". Raise UserError for a name that is taken, or a name
        or password that MQTT cannot carry; and, with `scram`, that SCRAM cannot carry."""
        check_name(name)
        made = self._credential(name, password, scram=scram)
        user = User(name, made.password_hash, client_type, False, _now_ms(), scram=made.scram)
        if not self._users.add(user):
            raise _taken(name)
        return made.password

    def set_password(self, name: str, password: bytes | None, *, scram: bool = False) -> str:
        """An account that entered by SCRAM goes on to; with `scram` it does from now on. Returns the password, made
        here when it is None, else "". Raise UserError when there is no such account, or for a password that MQTT, or
        SCRAM, cannot carry."""
        user = self.find(name)
        made = self._credential(name, password, scram=scram or bool(user.scram))
        self._update(replace(user, password_hash=made.password_hash, scram=made.scram))
        return made.password

    def _credential(self, name: str, password: bytes | None, *, scram: bool) -> _Credential:
        text = "" if password is not None else make_password()
        data = text.encode() if password is None else password
        _check_password(data)
        verifiers = _verifiers(name, data) if scram else ""
        kept = hash_generated(data) if password is None else PasswordHashes().make(data)
        return _Credential(text, kept, verifiers)

    def set_disabled(self, name: str, *, disabled: bool) -> None:
        """Raise UserError when there is no such account. Nothing changes when it is so already."""
        user = self.find(name)
        if user.disabled != disabled:
            self._update(replace(user, disabled=disabled))

    def remove(self, name: str) -> None:
        """Raise UserError when there is no such account."""
        if not self._users.remove(name):
            raise _nobody(name)

    def find(self, name: str) -> User:
        """Raise UserError when there is no such account."""
        user = self._users.find(name)
        if user is None:
            raise _nobody(name)
        return user

    def all(self) -> list[User]:
        """Read every account, in the order of names. Raises StoreError."""
        return self._users.all()

    def import_file(
        self, path: Path, client_type: ClientType, *, replace_existing: bool = False, dry_run: bool = False
    ) -> Imported:
        """Take the users of a Mosquitto password file, all or none. Raises as `users_of_file` does."""
        users = users_of_file(path, client_type)
        return self.import_users(users, replace_existing=replace_existing, dry_run=dry_run)

    def import_users(
        self, users: list[User], *, replace_existing: bool = False, dry_run: bool = False
    ) -> Imported:
        """Take these accounts, all or none."""
        there = {user.name for user in self._users.all()}
        known = sum(user.name in there for user in users)
        if not dry_run:
            self._users.import_all(users, replace=replace_existing)
        return Imported(
            len(users),
            len(users) - known,
            known if replace_existing else 0,
            0 if replace_existing else known,
        )

    def _update(self, user: User) -> None:
        if not self._users.update(user):
            raise _nobody(user.name)


def users_of_file(path: Path, client_type: ClientType) -> list[User]:
    """Those of a Mosquitto password file. Raises UserError with what is wrong by line, and OSError."""
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise UserError(f"{path} has more than the largest possible {FILE_BYTES_MAX} bytes")
    entries, problems = parse_password_file(data)
    for entry in entries:
        try:
            check_name(entry.name)
        except UserError as error:
            problems.append(f"line {entry.line}: {error}")
    if problems:
        more = f"; and {len(problems) - PROBLEMS_SHOWN} more" if len(problems) > PROBLEMS_SHOWN else ""
        shown = "; ".join(problems[:PROBLEMS_SHOWN])
        raise UserError(f"{path}: nothing was imported: {shown}{more}")
    now_ms = _now_ms()
    return [User(entry.name, entry.password_hash, client_type, False, now_ms) for entry in entries]


def _taken(name: str) -> UserError:
    return UserError(f"there is a user {name!r} already")


def _nobody(name: str) -> UserError:
    return UserError(f"there is no user {name!r}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _verifiers(name: str, password: bytes) -> str:
    try:
        return make_verifiers(name, password)
    except UnfitForScram as error:
        raise UserError(str(error)) from None


def _check_password(password: bytes) -> None:
    if not password:
        raise UserError("the password is empty")
    if len(password) > TEXT_BYTES_MAX:
        raise UserError(
            f"the password has {len(password)} bytes, more than the largest possible {TEXT_BYTES_MAX}"
        )


def check_name(name: str) -> None:
    """Raise OptionError for what cannot be a user name [MQTT-1.5.4-2]."""
    size = len(name.encode(errors="surrogateescape"))
    if not name or size > TEXT_BYTES_MAX:
        raise OptionError(f"a user name has 1 to {TEXT_BYTES_MAX} bytes, this one has {size}")
    if not name.isprintable():
        raise OptionError(f"the user name {name!r} has characters that cannot be shown")


@contextmanager
def accounts_of(settings: Settings, *, create: bool = False) -> Iterator[Accounts]:
    """The accounts that a broker with these settings has, let go at the end. Without `create` a data directory that
    holds them must be there."""
    data_dir = Path(settings.data_dir)
    if not create and static_url(settings) is None and not data_dir.is_dir():
        raise UserError(f"there is no data directory {data_dir}; name it with --data-dir")
    users = open_users(settings)
    try:
        yield Accounts(users)
    finally:
        users.close()
