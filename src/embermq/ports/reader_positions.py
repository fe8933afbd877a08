"""Where readers of application logs stand, when those logs are in a store of their own; ticks write it."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from msgspec import Struct

from embermq.model.application_positions import ReaderPosition
from embermq.model.tick_writes import ApplicationMark
from embermq.ports.errors import StoreError


class StoredReader(Struct, frozen=True):
    """The stored reader of one session: its position, if it has one, and marks in the order of their offsets."""

    position: ReaderPosition | None
    marks: tuple[ApplicationMark, ...]


ReaderFound = Callable[[StoredReader | StoreError], None]


class ReaderPositions(ABC):
    """Guarantees: what is read contains every write of a tick whose `logged` was called before the request. `then` is
    called once, on the broker's own thread, possibly before the call returns; while the store is away it waits."""

    @abstractmethod
    def load(self, generation: int, then: ReaderFound) -> None:
        """What is stored, empty when nothing is."""
