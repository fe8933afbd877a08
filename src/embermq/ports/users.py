"""The accounts that clients enter with."""

from abc import ABC, abstractmethod

from msgspec import Struct

from embermq.model.client_type import ClientType


class User(Struct, frozen=True):
    """An account. `password_hash` is never the password; `created_ms` is Unix time."""

    name: str
    password_hash: str
    client_type: ClientType
    disabled: bool
    created_ms: int

    def __repr__(self) -> str:
        """Without the hash, so that no log can hold it."""
        return f"User(name={self.name!r}, client_type={self.client_type.name}, disabled={self.disabled})"


class Users(ABC):
    """Holds accounts by name.

    Guarantees: a name is there once; a change that returned is durable and is seen by every process that reads
    afterwards. May be called from any thread. Raises StoreError when the store cannot answer.
    """

    @abstractmethod
    def find(self, name: str) -> User | None:
        """The account of this name."""

    @abstractmethod
    def add(self, user: User) -> bool:
        """False, and nothing changed, when the name is taken."""

    @abstractmethod
    def update(self, user: User) -> bool:
        """Replace all but the name and the time of creation; False when there is no such account."""

    @abstractmethod
    def remove(self, name: str) -> bool:
        """False when there was no such account."""

    @abstractmethod
    def all(self) -> list[User]:
        """Every account, by name."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the store; nothing else may be called afterwards."""
