"""What may leave the message log: too old or too much, and read by everyone who needs it."""

from collections.abc import Iterable

from msgspec import Struct

from embermq.ports.log_readers import LogReader, LogReaders
from embermq.ports.message_log import MessageLog


class RetentionLimits(Struct, frozen=True, kw_only=True):
    """`pin_bytes`: bodies that readers may hold back beyond retention."""

    age_ms: int
    kept_bytes: int
    pin_bytes: int


class Pin(Struct, frozen=True):
    """A reader and the first offset that it still needs."""

    name: str
    next_offset: int


class RetentionState(Struct, frozen=True):
    """The outcome of one round: who holds back most (None: nobody), and whether the pin limit is reached."""

    start_offset: int
    end_offset: int
    body_bytes: int
    pins: tuple[Pin, ...]
    over_limit: bool


class Retention:
    """Trims the log in rounds. A reader that never confirmed anything holds back nothing unless it is expected."""

    def __init__(
        self, log: MessageLog, readers: LogReaders, limits: RetentionLimits, expected: Iterable[str]
    ) -> None:
        self._log = log
        self._readers = readers
        self._limits = limits
        self._expected = frozenset(expected)

    def run(self, own: Iterable[Pin], now_ms: int) -> RetentionState:
        """One round. `own` are the broker's own readers: the dispatcher and the application sessions."""
        found: dict[str, LogReader] = {reader.name: reader for reader in self._readers.positions()}
        pins = list(own)
        pins += [Pin(reader.name, reader.next_offset) for reader in found.values()]
        pins += [Pin(name, 0) for name in self._expected if name not in found]
        statistics = self._log.statistics()
        floor = min((pin.next_offset for pin in pins), default=statistics.end_offset)
        wanted = self._log.offset_at(now_ms - self._limits.age_ms)
        if statistics.body_bytes > self._limits.kept_bytes:
            share = self._limits.kept_bytes / statistics.body_bytes
            span = statistics.end_offset - statistics.start_offset
            wanted = max(wanted, statistics.end_offset - int(span * share))
        below = min(wanted, floor)
        if below > statistics.start_offset:
            self._log.trim(below)
        return RetentionState(
            statistics.start_offset,
            statistics.end_offset,
            statistics.body_bytes,
            tuple(sorted(pins, key=lambda pin: pin.next_offset)),
            statistics.body_bytes > self._limits.pin_bytes,
        )
