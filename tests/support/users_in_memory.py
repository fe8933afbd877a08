"""Accounts in a dictionary, with the promises of the port."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from msgspec.structs import replace as replaced

from embermq.ports.users import CHANGES_MAX, Changes, User, Users

DEADLINE_S = 30


class UsersInMemory(Users):
    """`gate` holds every look-up until it is opened; `error` is raised by each, when there is one, and
    `error_of_reading` by reading all. `forgotten` is the
    newest change that is no longer known."""

    def __init__(self, *users: User) -> None:
        self.users = {user.name: user for user in users}
        self.changed: list[str] = []
        self.forgotten = 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.error_of_reading: Exception | None = None

    def find(self, name: str) -> User | None:
        self.gate.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        return self.users.get(name)

    def find_many(self, names: Collection[str]) -> dict[str, User]:
        found = ((name, self.find(name)) for name in names)
        return {name: user for name, user in found if user is not None}

    def add(self, user: User) -> bool:
        if user.name in self.users:
            return False
        self.users[user.name] = replaced(user, version=len(self.changed) + 1)
        self.changed.append(user.name)
        return True

    def update(self, user: User) -> bool:
        before = self.users.get(user.name)
        if before is None:
            return False
        self.users[user.name] = replaced(user, created_ms=before.created_ms, version=before.version + 1)
        self.changed.append(user.name)
        return True

    def replace_hash(self, name: str, before: str, after: str) -> bool:
        user = self.users.get(name)
        if user is None or user.password_hash != before:
            return False
        self.users[name] = replaced(user, password_hash=after)
        return True

    def remove(self, name: str) -> bool:
        if self.users.pop(name, None) is None:
            return False
        self.changed.append(name)
        return True

    def is_empty(self) -> bool:
        if self.error_of_reading is not None:
            raise self.error_of_reading
        return not self.users

    def all(self) -> list[User]:
        if self.error_of_reading is not None:
            raise self.error_of_reading
        return [self.users[name] for name in sorted(self.users)]

    def imported_hashes(self) -> list[str]:
        return [
            user.password_hash
            for user in self.users.values()
            if user.password_hash.startswith(("$6$", "$7$"))
        ]

    def import_all(self, users: Iterable[User], *, replace: bool) -> int:
        return sum(self.add(user) or (replace and self.update(user)) for user in users)

    def secret(self) -> bytes:
        return bytes(32)

    def changes(self, after_seq: int) -> Changes:
        if self.error is not None:
            raise self.error
        first = max(after_seq, self.forgotten)
        names = self.changed[first : first + CHANGES_MAX]
        if not names:
            return Changes(after_seq, (), complete=True)
        return Changes(first + len(names), tuple(dict.fromkeys(names)), complete=first == after_seq)

    def newest_change(self) -> int:
        return len(self.changed)

    def close(self) -> None:
        """Nothing is held."""
