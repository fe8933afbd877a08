"""What durable queues have stored, and the bodies of their messages; written by ticks, read at start and to deliver."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from embermq.model.queue_rows import StoredQueue
from embermq.ports.errors import StoreError

BodiesFound = Callable[[Mapping[int, bytes | None] | StoreError], None]
"""Told encoded records by offset; None for one that nobody has."""


class QueueStore(ABC):
    """Reads what the newest committed tick said. Rows are stored with the log's part of a tick.

    Guarantees: a record that an entry or a delayed row stands for can be read, also after the log has let go of it;
    when the last of them is removed, what was kept of it is let go.
    """

    @abstractmethod
    def load(self) -> list[StoredQueue]:
        """By generation. Read the entries of one before those of the next, and all of them before the first tick.
        Raises StoreError, also while the entries are gone through."""

    @abstractmethod
    def next_generation(self) -> int:
        """Above those of all queues that ever were, 1 at first. Raises StoreError."""

    @abstractmethod
    def bodies(self, queue: int, messages: Sequence[tuple[int, int]], then: BodiesFound) -> None:
        """Read records of messages of the queue with this generation, each named by its offset and by its sequence or
        ticket. `then` is called on the broker's own thread after this call has returned, once or several times, with
        some of them each time and each of them once; a StoreError is the last word for what is missing."""

    @abstractmethod
    def confirm(self, queue: int, then: Callable[[], None]) -> None:
        """Call `then` once it is certain that at the time of this call no other broker had taken the queue with this
        generation over: never when one had. On the broker's own thread; at once, within this call, where no other
        broker can."""

    @abstractmethod
    def close(self) -> None:
        """What was asked and is not answered will not be. Before the store of ticks is closed."""
