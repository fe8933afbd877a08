"""What a report has found. No Spark in here."""

from msgspec import Struct

from embermq.pipeline.jobs.past_range import PartitionRange


class HourOfTraffic(Struct, frozen=True, kw_only=True):
    """Accepted in one hour (UTC) below one first topic level, `queue` where that was a durable one."""

    hour: str
    root: str
    queue: str | None
    messages: int
    payload_bytes: int
    qos1: int
    qos2: int


class Talker(Struct, frozen=True, kw_only=True):
    """A client that published much, or an application that was owed much."""

    client: str
    messages: int
    payload_bytes: int


class Sizes(Struct, frozen=True, kw_only=True):
    """Payloads below one first topic level, quantiles in bytes."""

    root: str
    messages: int
    payload_bytes: int
    p50: int
    p95: int
    p99: int
    largest: int


class Latency(Struct, frozen=True, kw_only=True):
    """From accepted to acknowledged, of one day and type of client: of the middle window, and of the worst."""

    date: str
    clients: str
    samples: int
    p50_us: int
    worst_p99_us: int
    max_us: int


class DeadLetters(Struct, frozen=True, kw_only=True):
    """That are there now, by the day on which they became such."""

    date: str
    queue: str
    group: str
    reason: str
    letters: int


class TrafficReport(Struct, frozen=True, kw_only=True):
    """Of positions in `ranges`. `unreadable` ones are in neither figure. `sizes`: messages by the most bytes that they
    have, powers of two."""

    ranges: tuple[PartitionRange, ...]
    oldest: str | None
    newest: str | None
    messages: int
    payload_bytes: int
    unreadable: int
    publishers_count: int
    hours: tuple[HourOfTraffic, ...]
    publishers: tuple[Talker, ...]
    receivers: tuple[Talker, ...]
    roots: tuple[Sizes, ...]
    sizes: dict[int, int]
    latencies: tuple[Latency, ...]
    dead_letters: tuple[DeadLetters, ...]
    seconds: float = 0.0
