"""What all clients of a run write into."""

from __future__ import annotations

import sys

from embermq.bench.latency import Histogram

NEVER_NS = sys.maxsize


class Measurement:
    """Latencies of messages whose intended send time lies at or after `since_ns` (monotonic clock)."""

    __slots__ = ("acknowledgement", "delivery", "send_delay", "since_ns")

    def __init__(self) -> None:
        self.since_ns = NEVER_NS
        self.delivery = Histogram()
        self.acknowledgement = Histogram()
        self.send_delay = Histogram()
