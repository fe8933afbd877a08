"""Messages that are kept aside for applications; ticks write them (`TickWrites.parked`)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from embermq.model.parked_message import ParkedMessage, ParkedState
from embermq.ports.errors import StoreError

ParkedFound = Callable[[Mapping[int, ParkedMessage | None] | StoreError], None]
"""By number; None for one that is not there, or deleted."""


class ParkedMessages(ABC):
    """Reads what ticks have stored.

    Guarantees: the messages of a generation are gone with its application's log (`TickWrites.ended_applications`).
    `then` is called once, on the broker's own thread, possibly before the call returns; while the store is away it
    waits.
    """

    @abstractmethod
    def load(self) -> list[ParkedState]:
        """Of all messages, by generation and number, deleted ones included: at the start. Raises StoreError."""

    @abstractmethod
    def read(self, generation: int, numbers: Sequence[int], bytes_max: int, then: ParkedFound) -> None:
        """The first of these messages, up to the one whose record reaches `bytes_max` in sum; with 0 all of them, each
        with b"" for its record."""
