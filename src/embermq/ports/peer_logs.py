"""Message logs that other nodes write, read as they grow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from msgspec import Struct


class PeerRecords(Struct, frozen=True):
    """A piece of a log: positions and records in order. `end`: there is nothing else below it."""

    records: Sequence[tuple[int, bytes]]
    end: int


Take = Callable[[PeerRecords, Callable[[], None]], None]
"""Called on the reader's own thread with one piece after another, and what to call, on any thread, when the piece is
done: the next one is read then."""


class PeerLog(ABC):
    """Of one other slot. Guarantees: every record from the place where it begins is taken, in order and once; a log
    that is not there yet is waited for, one that does not answer is tried again for ever."""

    @abstractmethod
    def start(self, at: int, take: Take) -> None:
        """Begin to read at this position."""

    @abstractmethod
    def catch_up(self, then: Callable[[], None]) -> None:
        """Call `then`, on a thread of its own, when all has been taken that is in the log at this moment; a log that is
        not there has nothing. While it does not answer that takes as long. Does not wait."""

    @abstractmethod
    def told(self, position: int) -> None:
        """Say to the log's writer that nothing below this position is needed here any more. Does not wait."""

    @property
    @abstractmethod
    def failing(self) -> str:
        """Why it cannot be read now, "" while it can."""

    @abstractmethod
    def close(self) -> None:
        """Read no more. A piece that has been taken need not be done."""
