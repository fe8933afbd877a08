"""The logs of APPLICATION sessions: filled by the pipeline, read by the broker."""

from abc import ABC, abstractmethod

from msgspec import Struct

from embermq.model.tick_writes import ApplicationMark


class ApplicationEntry(Struct, frozen=True, gc=False):
    """One record that the application wants: its offset in the message log and what was stamped on it."""

    offset: int
    qos: int
    retain_as_published: bool
    identifiers: tuple[int, ...]


class ApplicationFloor(Struct, frozen=True):
    """Below `floor_offset` the session needs nothing any more."""

    client_id: str
    generation: int
    floor_offset: int


class ApplicationContext(Struct, frozen=True):
    """The progress of a session in its log: all entries below `floor_offset` are settled; `marks` are those above
    it."""

    floor_offset: int
    marks: tuple[ApplicationMark, ...]


class ApplicationLog(ABC):
    """Reads application logs.

    Guarantees: entries come in offset order without repeats; `complete_offset` only grows, and no entry below it
    appears later.
    """

    @abstractmethod
    def complete_offset(self) -> int:
        """Every record of the message log below this offset is in the application logs that want it."""

    @abstractmethod
    def read(self, generation: int, from_offset: int, limit: int) -> list[ApplicationEntry]:
        """At most `limit` entries at or after `from_offset`, below `complete_offset`."""

    @abstractmethod
    def context(self, generation: int) -> ApplicationContext | None:
        """What ticks stored of the reader's state; None when there is nothing yet."""

    @abstractmethod
    def floors(self) -> list[ApplicationFloor]:
        """Of every APPLICATION session."""
