"""All that a tick wants kept besides its records, where that is in a store of its own behind the message log."""

from abc import ABC, abstractmethod

from msgspec import Struct

from embermq.model.tick_writes import TickWrites
from embermq.ports.tick_store import Stored


class StateWriter(ABC):
    """Makes the state of sessions, shared groups and queues durable where that is another system than the message log.

    Guarantees: what one owner's data is asked to become, it becomes in the order of `submit`, each part once, also
    after an error half way: every operation is safe to repeat. Owners (`ports.tick_store`) do not wait for one another.
    Writes of a session are refused in the store itself when the store holds a newer generation or epoch of it
    [repositories 8]; they are counted and count as done. Nothing is given up: while the store does not answer, writes
    wait in memory and are tried again.
    """

    @abstractmethod
    def submit(self, writes: TickWrites, base: int, log_end: int, stored: Stored) -> None:
        """Start to write all of a tick but its records, its floor and its reserved generations. Record i of the tick
        has the position `base` + i; `log_end` is the one behind the last.

        `stored` is called later, on the broker's own thread, once, when this and all that was submitted before is
        durable; never before this call returns. `writes` may be empty: then only the turn is waited for.
        """

    @abstractmethod
    def when_stored(self, owner: int, call: Stored) -> None:
        """Make this call, on the broker's own thread, when everything that was submitted up to now for this owner is
        durable: at once, when it is."""

    @abstractmethod
    def note_log(self, end: int, generations: int, now_ms: int, noted: Stored) -> None:
        """Remember for the next start: the log ends at `end` or behind it, generations below `generations` may be in
        use, and broker time was `now_ms`. None of them ever goes back. `noted` is called later, on the broker's own
        thread, once, when that is durable."""

    @abstractmethod
    def note_end(self, end: int, *, in_order: bool) -> None:
        """The broker ends: the log ends at `end`; `in_order`: and nothing is on its way any more. What was to be
        forgotten is forgotten now."""

    def look(self) -> None:
        """Called now and then: see whether what is stored is there still, also while nobody asks for it."""
        return

    @abstractmethod
    def forget_below(self, floor: int) -> None:
        """Every record below `floor` is delivered, stored or owed to nobody, and that is durable: which of them a
        client has had stored need not be known any more [device 5]. May be asked again, as long as `floor` of the store
        is behind."""

    @property
    @abstractmethod
    def floor(self) -> int:
        """The next start reads the log from here at the earliest, whatever the store loses of what it confirmed a
        moment ago."""

    @property
    @abstractmethod
    def waiting_bytes(self) -> int:
        """Bytes of what waits for the store."""

    @abstractmethod
    def is_away(self, client_id: str) -> bool:
        """Whether the server that has the data of this client is known not to answer."""

    @abstractmethod
    def is_queue_away(self, name: str) -> bool:
        """The same of the queue of this name, or the one that will be."""

    @property
    @abstractmethod
    def failing(self) -> str:
        """Why the store does not answer, "" when it works. Without credentials."""

    @abstractmethod
    def close(self) -> None:
        """Nobody is called any more. What waits is not written: the log has it, behind the dispatcher's floor."""


class SessionStoreStatistics(Struct, frozen=True):
    """A session store of its own at one moment, for operators. Counts are since the start."""

    failing: str
    """Why it does not answer, "" when it works. Without credentials."""
    waiting_ticks: int
    """Ticks whose session data is not stored yet."""
    waiting_bytes: int
    operations: int
    """Operations that were answered."""
    round_trips: int
    retries: int
    refused: int
    """Operations that the store will never do (an error in a script, a key of a foreign type)."""
    fenced: int
    """Writes that it refused because it holds a newer session."""
    unreadable: int
    """Stored messages that could not be understood; they stay in the store."""
    connections: int
    """How often a connection was opened."""
    resent: int
    """Operations that were confirmed, and sent again to a server that may have lost them."""
    settling_let_go: int
    """Operations that could not be kept for that as long as they should be, for want of room."""
    former_ended: int
    """Connections of brokers before this one that the start has found there and ended."""
