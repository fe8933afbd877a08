"""What all clients of a run write into."""

from __future__ import annotations

import sys

from embermq_bench.latency import Histogram

NEVER_NS = sys.maxsize


class Measurement:
    """Latencies of messages whose intended send time lies at or after `since_ns` (monotonic clock).

    `returning` is of messages to subscribers that have come back since then and have not caught up: what they missed,
    and what came behind it. It counts from their return, or from the intended send time where that is later.
    """

    __slots__ = ("acknowledgement", "delivery", "returning", "send_delay", "settling", "since_ns")

    def __init__(self) -> None:
        self.since_ns = NEVER_NS
        self.delivery = Histogram()
        self.returning = Histogram()
        self.acknowledgement = Histogram()
        self.send_delay = Histogram()
        self.settling = Histogram()
        """To the confirmation of its `$ack`, of messages from a queue."""
