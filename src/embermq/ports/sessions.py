"""What is kept of sessions; written by ticks, read back at start."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct, field

from embermq.model.session import RetainedRow, SessionRow, SubscriptionRow, WillRow


class StoredSession(Struct, frozen=True):
    """A session with everything that belongs to it except its queued messages."""

    row: SessionRow
    subscriptions: tuple[SubscriptionRow, ...]
    receiving: tuple[int, ...]
    """Packet ids of incoming QoS 2 PUBLISHes whose PUBREL has not come."""
    queue_seq_next: int
    """The next free sequence number of the device queue."""
    queued: int
    """Stored deliveries that are not done."""
    queued_bytes: int
    """Bytes of their records."""
    receiving_upto: int = -1
    """Of a store of its own: `receiving` is complete for records below this offset of the log, 0 when nothing was ever
    written to it. -1 where it shares its transactions with the log: it is complete."""
    complete_to: int | None = None
    """What this session has had stored is here for every record below this offset; None: below the dispatcher's floor.
    Less than that: the store has lost its newest data."""


class StoredSessions(Protocol):
    """All sessions, by generation, the newest first. May be read from the store each time, one after the other."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[StoredSession]: ...


class StoredState(Struct, frozen=True):
    """Everything the broker reads at start."""

    sessions: StoredSessions = field(default_factory=list)
    wills: list[tuple[int, WillRow]] = field(default_factory=list)
    """(generation, will), of sessions and of clients that had none."""
    dispatcher_floor: int = 0
    log_end: int = 0
    generation_reserved: int = 1
    replays: dict[str, int] = field(default_factory=dict)
    """Id of a replay -> the number of its next message."""
    replays_complete_to: int | None = None
    """These know of every record below this offset; None: of all, or below the dispatcher's floor."""


class SessionStore(ABC):
    """Reads session data. Guarantees: `load` returns what all committed ticks left, nothing of others."""

    @abstractmethod
    def load(self) -> StoredState:
        """Read everything; called once, before the first tick."""

    @abstractmethod
    def load_retained(self) -> list[RetainedRow]:
        """Every retained message that is stored."""
