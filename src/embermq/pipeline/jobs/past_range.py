"""Which past messages a job is about. No Spark in here."""

from msgspec import Struct


class PastRange(Struct, frozen=True, kw_only=True):
    """Offsets, or times in Unix milliseconds; None where it is open."""

    start: int | None = None
    start_ms: int | None = None
    end: int | None = None
    end_ms: int | None = None

    @property
    def has_times(self) -> bool:
        """Whether offsets alone do not say what is inside."""
        return self.start_ms is not None or self.end_ms is not None


class PartitionRange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Positions [start, end) of one partition of the log; `slot`, where there are several, says whose."""

    partition: int
    start: int
    end: int
    slot: int | None = None

    def __str__(self) -> str:
        of = "" if self.slot is None else f"slot {self.slot}, "
        return f"{of}{self.partition}:{self.start} up to {self.partition}:{self.end}"
