"""The logs of APPLICATION sessions: filled by the pipeline, read by the broker."""

from abc import ABC, abstractmethod

from msgspec import Struct


class ApplicationFloor(Struct, frozen=True):
    """Below `floor_offset` the session needs nothing any more."""

    client_id: str
    generation: int
    floor_offset: int


class ApplicationLog(ABC):
    """Reads application logs.

    Guarantees: entries come in offset order without repeats; `complete_offset` only grows, and no entry below it
    appears later.
    """

    @abstractmethod
    def complete_offset(self) -> int:
        """Every record of the message log below this offset is in the application logs that want it."""

    @abstractmethod
    def read(self, generation: int, from_offset: int, limit: int) -> list[int]:
        """The offsets, in the message log, of at most `limit` records that the application wants, at or after
        `from_offset` and below `complete_offset`."""

    @abstractmethod
    def floors(self) -> list[ApplicationFloor]:
        """Of every APPLICATION session."""
