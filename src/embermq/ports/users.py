"""The accounts that clients enter with."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable

from msgspec import Struct

from embermq.model.client_type import ClientType


class User(Struct, frozen=True):
    """An account. `password_hash` is never the password; `created_ms` is Unix time.

    `scram` is what SCRAM checks proofs of the same password by, "" for nothing. `version` is 1 at first and counted up
    by the store with each change that ends what was entered with before.
    """

    name: str
    password_hash: str
    client_type: ClientType
    disabled: bool
    created_ms: int
    version: int = 1
    scram: str = ""

    def __repr__(self) -> str:
        """Without what it is checked by, so that no log can hold it."""
        return f"User(name={self.name!r}, client_type={self.client_type.name}, disabled={self.disabled})"


NAMES_MAX = 500
"""Accounts that are asked for at a time."""
CHANGES_MAX = 1_000
"""Changes that are told at a time."""


class Changes(Struct, frozen=True):
    """Accounts that were added, changed or removed, up to and with the change `seq`.

    `complete` is False when the store no longer knows all that came after the one asked for: any may have changed then.
    """

    seq: int
    names: tuple[str, ...]
    complete: bool


class Users(ABC):
    """Holds accounts by name.

    Guarantees: a name is there once; a change that returned is durable and is seen by every process that reads
    afterwards. May be called from any thread. Raises StoreError when the store cannot answer.
    """

    @abstractmethod
    def find(self, name: str) -> User | None:
        """The account of this name."""

    @abstractmethod
    def find_many(self, names: Collection[str]) -> dict[str, User]:
        """The accounts of these names, at most NAMES_MAX; who has none is left out."""

    @abstractmethod
    def add(self, user: User) -> bool:
        """False, and nothing changed, when the name is taken."""

    @abstractmethod
    def update(self, user: User) -> bool:
        """Replace all but the name and the time of creation, and count the version up; False when there is no such
        account."""

    @abstractmethod
    def replace_hash(self, name: str, before: str, after: str) -> bool:
        """Keep the same password in another form: nothing else changes, the version neither. False when the account is
        gone or its hash is not `before`."""

    @abstractmethod
    def remove(self, name: str) -> bool:
        """False when there was no such account."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is no account."""

    @abstractmethod
    def all(self) -> list[User]:
        """Every account, in the order of names."""

    @abstractmethod
    def imported_hashes(self) -> list[str]:
        """The hashes of accounts that came with a password file, `$6$` and `$7$`."""

    @abstractmethod
    def import_all(self, users: Iterable[User], *, replace: bool) -> int:
        """Add all of them, or none when that fails; returns how many. Those whose names are taken are left out, or
        replaced as by `update`."""

    @abstractmethod
    def changes(self, after_seq: int) -> Changes:
        """What came after a change, at most CHANGES_MAX of them, of any process."""

    @abstractmethod
    def newest_change(self) -> int:
        """The number of the newest change, 0 when there was none."""

    @abstractmethod
    def secret(self) -> bytes:
        """32 random bytes that belong to this store: nobody else has them, and they stay the same."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the store; nothing else may be called afterwards."""
