"""The durable step of a tick."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from msgspec import Struct

from embermq.model.tick_writes import TickWrites
from embermq.ports.errors import StoreError


class Receipt(Struct, frozen=True):
    """Proof that a tick is durable: record i of the tick has offset `base_offset` + i."""

    base_offset: int
    record_count: int


Done = Callable[[Receipt | StoreError], None]


class TickStore(ABC):
    """Makes the writes of one tick durable in one atomic step.

    Guarantees: all of the writes take effect or none; when `done` gets a Receipt they survive what the
    configured durability level says (`fsync`: power loss; `os`: the death of the process; `memory`: nothing yet,
    they are written soon). Ticks take effect in the order of `submit`. Offsets follow one another without gaps.
    """

    @abstractmethod
    def submit(self, writes: TickWrites, done: Done) -> None:
        """Start to commit. `done` is called later, on the broker's own thread, once.

        At most one tick is under way: calling it while `busy` is a programming error.
        """

    @property
    @abstractmethod
    def busy(self) -> bool:
        """True between `submit` and `done`."""

    @abstractmethod
    def settle(self) -> None:
        """Called now and then: write what the level `memory` has answered for and not written yet."""

    @abstractmethod
    def close(self) -> None:
        """Finish what is under way and release the files."""
