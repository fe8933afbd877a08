"""What belongs to the message log and is no record, where the records are in a store of their own."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from msgspec import Struct

from embermq.model.tick_writes import TickWrites
from embermq.ports.tick_store import Logged

Filled = tuple[tuple[int, int], ...]
"""Of each partition the offsets at which the last fillers begin and end."""
LogEnds = Callable[[], tuple[int, tuple[int, ...]]]
"""The number of the next record, and of each partition the next offset: of one moment."""


class KnownLog(Struct, frozen=True, kw_only=True):
    """What is remembered of the log at a start."""

    is_any: bool
    """Some run had one."""
    identity: str
    """Which one, "" when that is not remembered."""
    end: int
    """No number at or above it was given, or told to anybody."""
    records_end: int
    """The same, without the numbers that a start has left out and no record has got."""
    closed_end: int
    """With which the last run ended in order, -1 when it did not."""
    noted_number: int = 0
    """When the offsets were noted, this was the number of the next record."""
    noted_offsets: tuple[int, ...] = ()
    """Of each partition the next offset, as it was noted last; empty when it never was."""
    filled: Filled = ()
    """Offsets that were used up by fillers after a loss, which take no room; empty when none ever were."""
    since: int = 0
    """Records with lesser numbers were accepted into a log before this one, which was lost; 0 when there was none."""


class LogState(ABC):
    """Guarantees: all of a call takes effect or nothing; the rest is as with a `TickStore`. Beside it stands, in the
    same atomic step, the end of the log: everything of the ticks whose records are below it is here."""

    @abstractmethod
    def keep(self, writes: TickWrites, base: int, count: int, kept: Logged) -> None:
        """Start to commit what a tick wants besides its records, which are stored with the numbers from `base` on,
        `count` of them. `kept` is called later, on the broker's own thread, once. One call is under way at a time."""

    @property
    @abstractmethod
    def log_end(self) -> int:
        """The end of the log as it is known here, at most the true one."""

    @abstractmethod
    def known_log(self) -> KnownLog:
        """What the runs before have left."""

    @abstractmethod
    def open_log(
        self,
        identity: str,
        records_end: int,
        end: int,
        ends: LogEnds | None = None,
        *,
        filled: Filled = (),
    ) -> None:
        """Before the first record is appended: which log it is, where its records end, and the number that comes next.
        `ends` is asked now and then, and at the end, for offsets to remember; `filled` is remembered.
        From now on this run counts as one that did not end in order. With another log than before, what is known of
        positions in that one is forgotten. Raises StoreError."""

    @abstractmethod
    def close_log(self, end: int) -> None:
        """Nothing is on its way any more, and nothing will be; takes effect with `close`."""

    @abstractmethod
    def settle(self) -> None:
        """See `TickStore.settle`."""

    @abstractmethod
    def close(self) -> None:
        """Finish what is under way and release the files."""
