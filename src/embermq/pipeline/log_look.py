"""Where the log in Kafka and the pipeline's queries stand, as somebody outside the pipeline sees it."""

from collections import deque
from collections.abc import Callable, Mapping

from msgspec import Struct

Positions = Mapping[int, int]
"""Partition of the message log -> offset."""


class Bounds(Struct, frozen=True):
    """The bounds of a partition: `first` is the oldest offset that is still there, `end` the next one to be given."""

    first: int
    end: int
    unused: int = 0
    """Offsets before `end` that no record will ever have: the end of a transaction stands there, and readers that go
    from record to record do not come past it."""


def behind(bounds: Mapping[int, Bounds], done: Positions) -> dict[int, int]:
    """Where the oldest record stands that is not done, in each partition in which there is one."""
    starts = {number: max(found.first, done.get(number, 0)) for number, found in bounds.items()}
    return {number: at for number, at in starts.items() if at < bounds[number].end - bounds[number].unused}


def records_at(bounds: Mapping[int, Bounds], starts: Positions) -> int:
    """How many records there are from `starts` on, at most: ends of transactions between records count as such."""
    return sum(bounds[number].end - bounds[number].unused - at for number, at in starts.items())


class ToldReport(Struct, frozen=True):
    """The newest record of a driver that runs without the broker's data directory, and when it was heard."""

    value: bytes
    at_ms: int


LATE_MS = 60_000


def told_report(value: bytes, written_ms: int, now_ms: int) -> ToldReport:
    """Of a record by Kafka's clock. It was heard now, whatever difference there is between the clocks, unless it is
    old."""
    return ToldReport(value, now_ms if now_ms - written_ms < LATE_MS else written_ms)


class LogLook(Struct, frozen=True):
    """`done` is what each query has published; `accepted_ms` says when the oldest record at some positions was
    accepted, and may ask Kafka."""

    bounds: Mapping[int, Bounds]
    done: Mapping[str, Positions]
    accepted_ms: Callable[[Positions], int | None]
    report: ToldReport | None = None
    """What a driver elsewhere has said of itself."""

    def behind(self, query: str) -> dict[int, int]:
        """Where its oldest record stands in each partition in which there is one that it has not done."""
        return behind(self.bounds, self.done.get(query, {}))

    def lag(self, behind: Positions) -> int:
        """How many records these are."""
        return records_at(self.bounds, behind)


REMEMBERED = 3_600


class SeenEnds:
    """Dates records by when the log's ends were looked at, without reading one: for who looks once a second, and must
    not wait for Kafka. What is older than the looks that are remembered is dated to the first of them."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._looks: deque[tuple[int, Positions]] = deque(maxlen=remembered)

    def look(self, ends: Positions, now_ms: int) -> None:
        """Note where the log ends now, by partition."""
        self._looks.append((now_ms, ends))

    def accepted_ms(self, behind: Positions) -> int | None:
        """When nothing of what stands at these positions was there, the last time; None without a look."""
        found = None
        for at_ms, ends in reversed(self._looks):
            found = at_ms
            if all(ends.get(number, 0) <= at for number, at in behind.items()):
                break
        return found
