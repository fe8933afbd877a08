"""Groups of shared subscriptions that read logs of their own; written by ticks, read at start and when a client
comes."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from msgspec import Struct

from embermq.model.application_positions import StoredPositions
from embermq.model.shared_logs import SharedGroupRow, SharedMark
from embermq.ports.errors import StoreError

Claim = tuple[int, int, int]
"""A group's generation, partition and offset of an entry that nobody else may get."""
MarksFound = Callable[[list[SharedMark] | StoreError], None]


class StoredShared(Struct, frozen=True):
    """What ticks have stored of all groups. `positions` are by group's generation and partition."""

    groups: list[SharedGroupRow]
    positions: dict[tuple[int, int], StoredPositions]
    claims: list[Claim]


class SharedGroups(ABC):
    """Reads what the newest committed tick said."""

    @abstractmethod
    def load(self) -> StoredShared:
        """At the start. Raises StoreError."""

    @abstractmethod
    def in_flight(self, session: int, then: MarksFound) -> None:
        """What is under way to the session of this generation, QoS 2, in the order in which it was first sent. `then`
        is called once, on the broker's own thread, possibly before the call returns; while the store is away it
        waits."""
