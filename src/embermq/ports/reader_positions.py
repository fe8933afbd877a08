"""Where readers of application logs stand, when those logs are in a store of their own; ticks write it."""

from abc import ABC, abstractmethod

from msgspec import Struct

from embermq.model.application_positions import ReaderPosition
from embermq.model.tick_writes import ApplicationMark


class StoredReader(Struct, frozen=True):
    """The stored reader of one session: its position, if it has one, and marks in the order of their offsets."""

    position: ReaderPosition | None
    marks: tuple[ApplicationMark, ...]


class ReaderPositions(ABC):
    """Guarantees: what a committed tick has written is read at once."""

    @abstractmethod
    def load(self, generation: int) -> StoredReader:
        """What is stored, empty when nothing is. Raises StoreError."""
