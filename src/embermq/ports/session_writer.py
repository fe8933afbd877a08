"""Session data in a store of its own: what one tick wants kept of sessions, made durable in the order of the ticks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from msgspec import Struct

from embermq.model.session_writes import SessionWrites
from embermq.ports.tick_store import Stored


class SessionWriter(ABC):
    """Makes session data durable where that is another system than the message log.

    Guarantees: what one client's data is asked to become, it becomes in the order of `submit`, each part once, also
    after an error half way: every operation is safe to repeat. Writes of a session are refused in the store itself when
    the store holds a newer generation or epoch of it [repositories 8]; they are counted and count as done. Nothing is
    given up: while the store does not answer, writes wait in memory and are tried again.
    """

    @abstractmethod
    def submit(
        self,
        writes: SessionWrites,
        base_offset: int,
        log_end: int,
        stored: Stored,
        *,
        records: Sequence[bytes] = (),
    ) -> None:
        """Start to write. Record i of the tick has offset `base_offset` + i; `log_end` is the offset behind the last:
        each write to the set of packet ids that a client is sending stores it too, as the offset up to which that set
        is complete. `records` are those of the tick: what is shown beside the packet ids, and nothing else.

        `stored` is called later, on the broker's own thread, once, when this and all that was submitted before is
        durable; never before this call returns. `writes` may be empty: then only the turn is waited for.
        """

    @abstractmethod
    def when_stored(self, generation: int, call: Stored) -> None:
        """Make this call, on the broker's own thread, when everything that was submitted up to now for the session of
        this generation is durable: at once, when it is."""

    @abstractmethod
    def forget_below(self, floor: int) -> None:
        """Every record below `floor` is delivered, stored or owed to nobody: which of them a client has had stored
        need not be known any more [device 5]."""

    @property
    @abstractmethod
    def waiting_bytes(self) -> int:
        """Bytes of what waits for the store."""

    @property
    @abstractmethod
    def failing(self) -> str:
        """Why the store does not answer, "" when it works. Without credentials."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections. What waits is not written: the log has it, behind the dispatcher's floor."""


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
