"""The offline queue of DEVICE sessions; written by ticks, read in pages."""

from abc import ABC, abstractmethod

from embermq.model.tick_writes import QueueRow


class DeviceQueue(ABC):
    """Reads stored deliveries.

    Guarantees: rows come in `seq` order; only committed rows are seen; a row is returned until a committed tick
    marked it DONE or dropped it.
    """

    @abstractmethod
    def in_flight(self, generation: int) -> list[QueueRow]:
        """Deliveries in state SENT or RELEASED, in the order they were first sent."""

    @abstractmethod
    def page(
        self, generation: int, after_seq: int, limit: int, *, bytes_max: int | None = None
    ) -> list[QueueRow]:
        """At most `limit` QUEUED deliveries with `seq` > `after_seq`; no more after the one whose record reaches
        `bytes_max` in sum."""

    @abstractmethod
    def oldest(self, generation: int, after_seq: int, limit: int) -> list[tuple[int, int]]:
        """(`seq`, bytes of the record) of the oldest QUEUED deliveries with `seq` > `after_seq`: what a limit drops
        first."""

    @abstractmethod
    def queued_seq_after(self, generation: int, offset: int) -> int | None:
        """`seq` of the first QUEUED delivery whose source offset is greater; None when there is none."""

    @abstractmethod
    def known_offsets(self, generation: int, from_offset: int, *, shared: bool) -> set[int]:
        """Source offsets >= `from_offset` that this session has had stored, done ones included: those that came by a
        shared subscription, or the others."""
