"""What a replay is asked for, and what is found. No Spark in here."""

from msgspec import Struct


class ReplayRange(Struct, frozen=True, kw_only=True):
    """`start` is an offset, or `start_ms` a time, or neither: from the oldest message on that is kept. `log_end` is the
    end of the log when the replay was asked for; an `end_offset`, or `end_ms`, may lie before it."""

    topic_filter: str
    log_end: int
    start: int | None = None
    start_ms: int | None = None
    end_offset: int | None = None
    end_ms: int | None = None

    @property
    def end(self) -> int:
        """The offset before which it ends."""
        return self.log_end if self.end_offset is None else min(self.end_offset, self.log_end)


class Chosen(Struct, frozen=True, kw_only=True):
    """What was found: `records` in the range, `chosen` among them, `expired` ones that the filter wants and whose time
    is over. `missing` offsets are in neither log nor lake; `unreadable` ones are damaged."""

    records: int = 0
    chosen: int = 0
    expired: int = 0
    payload_bytes: int = 0
    missing: int = 0
    unreadable: int = 0
    from_lake: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    seconds: float = 0.0
