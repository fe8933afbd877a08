"""What the broker tells of itself as a whole: what it is, and its figures second by second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

HISTORY_S = 300
"""How far the figures go back."""


class BrokerFigures(Struct, frozen=True, kw_only=True):
    """The broker at one moment, `time` (ISO 8601, UTC). What ends in `_per_s` is the mean since the moment before,
    about a second; the quantiles are of what was done in that time, from a histogram, None when nothing was.

    `acknowledged` is how long messages of QoS 1 and 2 waited for their answer, `commit` how long the store took for a
    tick. `dropped` were for subscribers, `refused` from publishers. `queue_depth` is of all durable queues, in
    messages; `pipeline_lag` of the query that is furthest behind, 0 without one. `log_bytes` are bodies in the message
    log."""

    time: str
    connections: int
    sessions: int
    subscriptions: int
    retained: int
    messages_in_per_s: float
    messages_out_per_s: float
    bytes_in_per_s: float
    bytes_out_per_s: float
    connects_per_s: float
    dropped_per_s: float
    refused_per_s: float
    acknowledged_p50_ms: float | None
    acknowledged_p99_ms: float | None
    commit_p50_ms: float | None
    commit_p99_ms: float | None
    queues: int
    queue_depth: int
    parked: int
    pipeline_lag_messages: int
    pipeline_lag_s: float
    log_records: int
    log_bytes: int
    memory_bytes: int
    cpu_percent: float


class BrokerView(Struct, frozen=True, kw_only=True):
    """The broker as a whole. `parts` are what `/ready` tells, `places` where log, sessions and accounts are, without
    credentials; `listeners` are addresses by kind; `totals` count since the start."""

    version: str
    python: str
    node: str
    started: str
    uptime_s: float
    ready: bool
    parts: Mapping[str, str]
    listeners: Mapping[str, Sequence[str]]
    places: Mapping[str, str]
    durability: str
    has_queues: bool
    connections_max: int
    now: BrokerFigures
    totals: Mapping[str, int]


class StreamRequest(Struct, frozen=True, kw_only=True):
    """Which of the live events are wanted."""

    figures: bool = True
    clients: bool = True
