"""The state beside the message log: what the frames of the log have changed, as far as they were applied."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from msgspec import Struct

from embermq.model.tick_writes import TickWrites

ReadRecords = Callable[[int, int], list[tuple[int, bytes]]]
"""(offset, record) of those in [start, end) that the log has."""


class CheckpointPosition(Struct, frozen=True):
    """Behind the last frame that was applied: file, position in it, and the offset of the next record. `number` is 0
    before the first frame."""

    number: int
    position: int
    offset: int


class Checkpoint(ABC):
    """Applies frames in their order. Guarantees: `applied` moves with what was applied in one atomic step, `commit`, so
    that after any end of the process the frames behind it can be applied again. What was applied is seen at once by
    readers in the broker's own thread, and by others after `commit`. Commits survive the process; after `sync` also a
    loss of power. Not thread-safe. Errors are StoreError.
    """

    @property
    @abstractmethod
    def identity(self) -> int:
        """The identity of the message log that it belongs to."""

    @property
    @abstractmethod
    def applied(self) -> CheckpointPosition:
        """Behind which frame the state stands, as of the last commit."""

    @property
    @abstractmethod
    def dispatcher_floor(self) -> int:
        """Every record below it is delivered, stored or owed to nobody."""

    @abstractmethod
    def apply(self, writes: TickWrites, base: int) -> None:
        """What a tick changes whose records begin at offset `base`; the records themselves are not looked at.
        After an error nothing since the last commit has been applied."""

    @abstractmethod
    def commit(self, position: CheckpointPosition) -> None:
        """Everything applied so far belongs to frames below `position`. After an error nothing since the last commit
        has been applied."""

    @abstractmethod
    def undo(self) -> None:
        """Nothing since the last commit has been applied."""

    @abstractmethod
    def keep_bodies(self, start: int, end: int, read: ReadRecords) -> int:
        """The log is about to lose the records in [start, end): copy those that are still needed. Returns the offset
        below which this is done, `end` when it is done."""

    @abstractmethod
    def sync(self) -> None:
        """Make the last commit survive a loss of power."""

    @abstractmethod
    def close(self) -> None:
        """Release the files; what was not committed is applied again from the log."""
