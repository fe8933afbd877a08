"""What is remembered, beside the message log, of the log itself."""

from msgspec import Struct


class KnownLog(Struct, frozen=True, kw_only=True):
    """What the runs before have left."""

    is_any: bool
    """Some run had one."""
    identity: str
    """Which one, "" when that is not remembered."""
    end: int
    """The position behind the last record that is known; a record behind it may have been told to somebody in the
    moment before a crash. The beginning of a partition that is not there yet: the log goes on there."""
    ended_in_order: bool
    """The last run ended in order: no record is behind `end`."""
    generations: int = 1
    """Generations below it may be in use."""
    time_ms: int = 0
    """Broker time as it was noted last: what is due was counted from that."""
    cluster: str = ""
    """The cluster whose nodes alone may open it, "" when that is not said."""
