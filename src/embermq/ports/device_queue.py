"""The offline queue of DEVICE sessions; written by ticks, read in pages."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from embermq.model.session_writes import QueueRow

Rows = Callable[[list[QueueRow]], None]
Sizes = Callable[[list[tuple[int, int]]], None]


class DeviceQueue(ABC):
    """Reads stored deliveries on request.

    Guarantees: rows come in `seq` order; a row is returned until a committed tick marked it DONE or dropped it. `then`
    is called once for each request, on the broker's own thread, possibly before the call returns; while the store is
    away it waits. What is read contains every write whose `stored` was called before the request, and of one session
    nothing that is handed to the store after it. Where the store numbers rows when it saves them, a QUEUED row has the
    packet id that it would like. Where it lets go of records whose time is over, QUEUED rows come with `record` b"" and
    are dropped by the broker. What is SENT or RELEASED is kept whatever the time. A row that was given without a record
    is RELEASED: PUBREL is owed.
    """

    @abstractmethod
    def in_flight(self, generation: int, then: Rows) -> None:
        """Deliveries in state SENT or RELEASED, in the order they were first sent."""

    @abstractmethod
    def page(
        self, generation: int, after_seq: int, limit: int, then: Rows, *, bytes_max: int | None = None
    ) -> None:
        """At most `limit` QUEUED deliveries with `seq` > `after_seq`; no more after the one whose record reaches
        `bytes_max` in sum."""

    @abstractmethod
    def oldest(self, generation: int, after_seq: int, limit: int, then: Sizes) -> None:
        """(`seq`, bytes of the record) of the oldest QUEUED deliveries with `seq` > `after_seq`: what a limit drops
        first."""


class DeviceQueueHistory(ABC):
    """What a session has had stored, for the repair after a start, before anybody is served: it waits for the answer.
    Raises StoreError."""

    @abstractmethod
    def queued_seq_after(self, generation: int, offset: int) -> int | None:
        """`seq` of the first QUEUED delivery whose source offset is greater; None when there is none."""

    @abstractmethod
    def queued(self, generation: int) -> list[tuple[int, int, int]]:
        """(`seq`, source offset, bytes of the record) of each QUEUED delivery."""

    @abstractmethod
    def shared_sent(self, generation: int) -> set[tuple[int, int]]:
        """(bits of `flags` from 3 on, source offset) of what came by a shared subscription and is SENT or RELEASED."""

    @abstractmethod
    def known_offsets(self, generation: int, from_offset: int) -> dict[int, set[int]]:
        """Source offsets >= `from_offset` that this session has had stored, done ones included, by the bits of `flags`
        from 3 on: each shared subscription has its own copy, and 0 stands for what came by none."""

    @abstractmethod
    def known_by_shares(self, from_offset: int) -> dict[int, set[int]]:
        """The same of all sessions that have not ended, but what came by no shared subscription."""
