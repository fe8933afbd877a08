"""Groups of shared subscriptions that read logs of their own; written by ticks, read at start and when a client
comes."""

from abc import ABC, abstractmethod

from msgspec import Struct

from embermq.model.application_positions import StoredPositions
from embermq.model.shared_logs import SharedGroupRow, SharedMark

Claim = tuple[int, int, int]
"""A group's generation, partition and offset of an entry that nobody else may get."""


class StoredShared(Struct, frozen=True):
    """What ticks have stored of all groups. `positions` are by group's generation and partition."""

    groups: list[SharedGroupRow]
    positions: dict[tuple[int, int], StoredPositions]
    claims: list[Claim]


class SharedGroups(ABC):
    """Reads what the newest committed tick said. It is stored with the log's part of a tick."""

    @abstractmethod
    def load(self) -> StoredShared:
        """Raises StoreError."""

    @abstractmethod
    def in_flight(self, session: int) -> list[SharedMark]:
        """What is under way to the session of this generation, QoS 2, in the order in which it was first sent.
        Raises StoreError."""
