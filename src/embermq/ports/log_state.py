"""What belongs to the message log and is no record, where the records are in a store of their own."""

from abc import ABC, abstractmethod

from embermq.model.tick_writes import TickWrites
from embermq.ports.known_log import KnownLog
from embermq.ports.tick_store import Logged


class LogState(ABC):
    """Guarantees: all of a call takes effect or nothing; the rest is as with a `TickStore`. Beside it stands, in the
    same atomic step, the end of the log: everything of the ticks whose records are below it is here."""

    @abstractmethod
    def keep(self, writes: TickWrites, base: int, count: int, kept: Logged) -> None:
        """Start to commit what a tick wants besides its records, which are stored with the positions from `base` on,
        `count` of them. `kept` is called later, on the broker's own thread, once. One call is under way at a time."""

    @property
    @abstractmethod
    def log_end(self) -> int:
        """The end of the log as it is known here, at most the true one."""

    @abstractmethod
    def known_log(self) -> KnownLog:
        """What the runs before have left."""

    @abstractmethod
    def open_log(self, identity: str) -> None:
        """Before the first record is appended: which log it is. From now on this run counts as one that did not end in
        order. Raises StoreError."""

    @abstractmethod
    def close_log(self, end: int, *, in_order: bool) -> None:
        """Everything of the ticks whose records are below `end` is here. `in_order`: nothing is on its way any more,
        and nothing will be. Takes effect with `close`."""

    @abstractmethod
    def settle(self) -> None:
        """See `TickStore.settle`."""

    @abstractmethod
    def close(self) -> None:
        """Finish what is under way and release the files."""
