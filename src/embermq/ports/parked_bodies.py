"""Bodies that an application still needs after the message log has let go of them."""

from abc import ABC, abstractmethod

from msgspec import Struct


class ParkedLog(Struct, frozen=True):
    """What is parked for one session generation: every entry of its log in [floor, `next_offset`) is there."""

    generation: int
    next_offset: int
    body_bytes: int


class ParkedBodies(ABC):
    """A place of its own for records, by session generation and offset.

    Guarantees: what `put` returned from is durable; putting the same record twice keeps one.
    """

    @abstractmethod
    def put(self, generation: int, records: list[tuple[int, bytes]], next_offset: int) -> None:
        """Keep (offset, encoded record) pairs; every entry below `next_offset` is parked now."""

    @abstractmethod
    def get(self, generation: int, offset: int) -> bytes | None:
        """An encoded record, None when it is not parked."""

    @abstractmethod
    def logs(self) -> list[ParkedLog]:
        """All generations that have something parked."""

    @abstractmethod
    def drop(self, generation: int, below_offset: int) -> int:
        """Forget records below an offset; returns how many there were."""

    @abstractmethod
    def drop_oldest(self, generation: int, body_bytes: int) -> int:
        """Forget the oldest records until that many bytes are free; returns how many records went."""
