"""How long messages of a queue wait: for their first consumer, and until they are settled. Bounded, whatever the queue
holds [queues-39]."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

WAITING_MAX = 1_024
"""Messages of one queue whose way to their first consumer is measured at a time; those that come meanwhile are not."""
SAMPLES_MAX = 1_024
WINDOW_MS = 60_000
MARKS_MAX = 2_048
MARK_EVERY_MS = 1_000


class LatencyWindow:
    """From the time a message may be delivered to the time its first delivery is written: of a sliding window."""

    __slots__ = ("_samples", "_waiting", "count", "total_ms")

    def __init__(self) -> None:
        self.count = 0
        """Samples since the broker began."""
        self.total_ms = 0
        self._waiting: dict[int, int] = {}
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)

    def arrived(self, sequence: int, now_ms: int) -> None:
        """A message is there, or about to be."""
        if len(self._waiting) < WAITING_MAX:
            self._waiting[sequence] = now_ms

    def delivered(self, sequence: int, now_ms: int) -> None:
        """It has been written to a consumer; only the first time counts."""
        began_ms = self._waiting.pop(sequence, None)
        if began_ms is not None:
            took_ms = max(0, now_ms - began_ms)
            self._samples.append((now_ms, took_ms))
            self.count += 1
            self.total_ms += took_ms

    def forget(self, sequence: int) -> None:
        self._waiting.pop(sequence, None)

    def quantiles(self, wanted: tuple[float, ...], now_ms: int) -> dict[float, float]:
        """Seconds by quantile, of what was delivered in the last minute; empty when nothing was."""
        samples = sorted(took for at_ms, took in self._samples if at_ms > now_ms - WINDOW_MS)
        if not samples:
            return {}
        last = len(samples) - 1
        return {quantile: samples[round(quantile * last)] / 1_000 for quantile in wanted}


class Arrivals:
    """About when a message came, to the second at best: sequences ascend, so a mark now and then is enough. Of a queue
    with very many marks every second one is let go of, so that times become coarser and never too young."""

    __slots__ = ("_sequences", "_times")

    def __init__(self) -> None:
        self._sequences: list[int] = []
        self._times: list[int] = []

    def mark(self, sequence: int, now_ms: int) -> None:
        """To be called in the order of sequences."""
        if self._times and now_ms < self._times[-1] + MARK_EVERY_MS:
            return
        if len(self._times) >= MARKS_MAX:
            del self._sequences[1::2], self._times[1::2]
        self._sequences.append(sequence)
        self._times.append(now_ms)

    def time_of(self, sequence: int) -> int | None:
        """Unix milliseconds; None for one that came before the broker began."""
        index = bisect_right(self._sequences, sequence) - 1
        return self._times[index] if index >= 0 else None
