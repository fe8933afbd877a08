"""The durable step of a tick."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from msgspec import Struct

from embermq.model.durations import DurationCounts
from embermq.model.tick_writes import TickWrites
from embermq.ports.errors import StoreError


class Receipt(Struct, frozen=True):
    """Proof that a tick's records are durable: record i of the tick has offset `base_offset` + i.

    `whole`: its session data is durable too; else `TickStore.when_stored` tells when it is.
    """

    base_offset: int
    record_count: int
    whole: bool = True


EVERYBODY = 0
"""In place of an owner: all of them. An owner of stored data is a session or a shared group, by its generation, or a
queue: see `queue_owner`."""


def queue_owner(generation: int) -> int:
    """A queue as an owner: queues count their generations by themselves, so they are numbered below zero."""
    return -generation


Logged = Callable[[Receipt | StoreError], None]
Stored = Callable[[], None]


class TickStore(ABC):
    """Makes the writes of ticks durable: with the embedded log all of a tick in one atomic step; on servers its records
    first, of which a crash may leave the first ones, then everything else, of each owner by itself.

    Guarantees: when `logged` gets a Receipt, the records survive what the configured durability level says (`fsync`:
    power loss; `os`: the death of the process; `memory`: nothing yet, it is written soon). Ticks take effect in the
    order of `submit`. Offsets follow one another without gaps. What else is wanted by a tick that was logged is never
    given up while the process lives.
    """

    @abstractmethod
    def submit(self, writes: TickWrites, logged: Logged) -> None:
        """Start to commit. `logged` is called later, on the broker's own thread, once.

        At most one tick is on its way into the log: calling it while `busy` is a programming error.
        """

    @property
    @abstractmethod
    def busy(self) -> bool:
        """True between `submit` and `logged`."""

    @property
    def waits(self) -> bool:
        """True while session data of some tick is not durable."""
        return False

    def when_stored(self, generation: int, call: Stored) -> None:
        """Make this call, on the broker's own thread, when the session data of this generation that was submitted up to
        now is durable: at once, when it is. Sessions do not wait for one another; `EVERYBODY` waits for all of them."""
        call()

    @property
    def owes(self) -> bool:
        """True while something of earlier ticks is to be written with the next one, be it empty."""
        return False

    @abstractmethod
    def settle(self) -> None:
        """Called now and then: write what the level `memory` has answered for and not written yet."""

    def syncs(self) -> DurationCounts | None:
        """How long the disk took to sync ticks; None where this process does not sync them."""
        return None

    def hurry(self) -> None:
        """The broker is about to stop: hold nothing back from now on."""
        return

    @abstractmethod
    def close(self) -> None:
        """Finish what is under way and release the files."""
