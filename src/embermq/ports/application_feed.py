"""Records of application logs as they come, for the clients that are connected.

All calls are made, and all answers come, on the broker's thread. A feed brings at most so many bytes that have not
been released, and one batch more: one who does not release is not read on, and holds up nobody else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from msgspec import Struct

from embermq.formats.log_record import LogRecord
from embermq.model.application_positions import StoredPositions

KnownPositions = Callable[[int], StoredPositions | None]


def unknown(_partition: int) -> StoredPositions | None:
    """Nobody knows better than the store."""
    return None


class FeedEntry(Struct, frozen=True, gc=False):
    """One record at `offset` of a log's partition; `source` is its position in the message log. `size` in bytes is what
    it counts until it is released. `record` is None for what is not there any more, and for what cannot be understood:
    `problem` says why then."""

    offset: int
    size: int
    source: int | None
    record: LogRecord | None
    problem: str = ""


class FeedTaker(Protocol):
    """The reader of a feed. Entries of a partition come in the order of the log, without repeats and without gaps but
    those that the log itself has."""

    def take(self, partition: int, entries: list[FeedEntry]) -> None:
        """Take the next entries of a partition, at offsets that rise."""

    def begins(self, partition: int, first: int) -> None:
        """What stood before this offset is not there any more; it may be long until something follows."""
        return

    def gone(self, reason: str) -> None:
        """The log is not there any more, or not the one that was read; nothing more comes."""


class SharedTaker(FeedTaker, Protocol):
    """A member of a shared subscription: which partitions it reads, the group decides."""

    def assigned(self, partition: int, stored: StoredPositions) -> None:
        """Entries of a partition follow, from `stored.base_offset` on."""

    def revoked(self, partition: int) -> None:
        """It is another member's now; what was committed last has been told to that one."""


class ApplicationFeed(ABC):
    """One log that is being read for one client. It brings entries by itself, or has them when it is asked."""

    @abstractmethod
    def release(self, size: int) -> None:
        """So many bytes of entries are needed no more."""

    def has_more(self, offset: int) -> bool:
        """Whether there may be something to `pull` from there on."""
        return False

    def pull(self, offset: int, limit: int) -> tuple[list[FeedEntry], int]:
        """The next entries from `offset` on, at most so many, and the offset below which everything has come."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None:
        """Nothing more comes, from this moment on."""


class SharedFeed(ApplicationFeed):
    """One member of a shared subscription."""

    @abstractmethod
    def commit(self, partition: int, positions: StoredPositions) -> None:
        """How far it has come: stored soon, and before another member gets the partition."""


class ApplicationFeeds(ABC):
    """All feeds of a broker, each of one client's log."""

    @abstractmethod
    def open(self, log: str, starts: Mapping[int, int], taker: FeedTaker) -> ApplicationFeed:
        """Read partitions of a log from these offsets on."""

    def fetch(self, log: str, offsets: Collection[int]) -> Mapping[int, FeedEntry] | None:
        """The entries at these offsets of a log with one partition; None when a log can only be read through. Raises
        StoreError."""
        return None

    def look(self) -> bool:
        """Called now and then; whether feeds may have more since."""
        return False

    @property
    @abstractmethod
    def failing(self) -> str:
        """Why nothing can be read now; "" when it can. It is tried again without end."""


class SharedFeeds(ABC):
    """All members that this broker has in shared subscriptions."""

    @abstractmethod
    def join(self, group: str, log: str, taker: SharedTaker, known: KnownPositions = unknown) -> SharedFeed:
        """Become a member of the group that shares a log. `known` says of a partition where the group stands, better
        than the store of the logs knows, or None; it is called on another thread."""

    @property
    @abstractmethod
    def failing(self) -> str:
        """Why shared logs cannot be read now, in one sentence for operators; "" while they can."""
