"""The durable, ordered log of every accepted QoS 1 and 2 message."""

from abc import ABC, abstractmethod

from msgspec import Struct


class LogBatch(Struct, frozen=True):
    """Consecutive records: `body` is their concatenation (model.log_record), record i has offset base + i."""

    base_offset: int
    record_count: int
    body: bytes


class LogStatistics(Struct, frozen=True):
    """Extent of the log: offsets [start, end), bytes of record bodies kept; about so many where the log does not tell
    the size of what earlier runs wrote."""

    start_offset: int
    end_offset: int
    body_bytes: int


class MessageLog(ABC):
    """Reads and trims the log. Appending is part of a tick (`ports.tick_store`).

    An offset is a position (`model.position`), the same in a log of one partition.

    Guarantees: a record that a Receipt named is returned, at its offset, until it is trimmed; readers never see a
    record that is not committed; order is offset order. Offsets that no record has may be left out between batches.
    """

    @abstractmethod
    def read(self, from_offset: int, *, records_max: int, bytes_max: int) -> list[LogBatch]:
        """Batches that hold `from_offset` and what follows, at least one when there is any.

        The first batch may begin before `from_offset`. Stops at the first batch that reaches either limit.
        """

    @abstractmethod
    def statistics(self) -> LogStatistics:
        """Where the log begins and ends now, and how many bytes of bodies it has."""

    @abstractmethod
    def offset_at(self, time_ms: int) -> int:
        """The first offset committed at or after `time_ms`; the end when there is none."""

    def offset_keeping(self, body_bytes: int) -> int:
        """About the offset from which so many bytes of bodies are left; the start when there are no more than that."""
        found = self.statistics()
        if found.body_bytes <= body_bytes:
            return found.start_offset
        span = found.end_offset - found.start_offset
        return found.end_offset - int(span * body_bytes / found.body_bytes)

    def count(self, start: int, end: int) -> int:
        """How many offsets there are from `start` on and before `end`."""
        return max(0, end - start)

    @abstractmethod
    def trim(self, below_offset: int) -> None:
        """Forget whole batches that lie below the offset. Takes effect with one of the next ticks. The last record may
        stay, where it is needed to tell which number comes next."""
