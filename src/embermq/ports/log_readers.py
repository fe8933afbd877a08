"""Who still needs the message log, and from where."""

from abc import ABC, abstractmethod

from msgspec import Struct


class LogReader(Struct, frozen=True):
    """A reader of the log outside the broker: every record below `next_offset` has had its effect there."""

    name: str
    next_offset: int
    updated_ms: int


class LogReaders(ABC):
    """Guarantee: an offset that was once reported is durable in the reader's own sink."""

    @abstractmethod
    def positions(self) -> list[LogReader]:
        """All readers that ever confirmed a position."""
