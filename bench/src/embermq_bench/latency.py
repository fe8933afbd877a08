"""Latency: a log-linear histogram, 128 steps an octave (an error below 0.8 %), in 4,608 counters."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

STEP_BITS = 7
SHIFT_MAX = 34
LARGEST_NS = (1 << (STEP_BITS + 1 + SHIFT_MAX)) - 1
"""About 73 minutes; anything longer counts as this long."""


class LatencySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles in milliseconds; all None when nothing was measured."""

    samples: int
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    max_ms: float | None = None
    mean_ms: float | None = None


class Histogram:
    """Counts durations in nanoseconds."""

    __slots__ = ("_counts", "_largest_ns", "_total_ns", "samples")

    def __init__(self) -> None:
        self._counts = [0] * ((SHIFT_MAX + 2) << STEP_BITS)
        self._largest_ns = 0
        self._total_ns = 0
        self.samples = 0

    def record_all(self, durations_ns: Iterable[int]) -> None:
        """Count each duration; negative ones (clocks of two machines) count as 0."""
        counts = self._counts
        largest = self._largest_ns
        total = samples = 0
        for measured in durations_ns:
            duration = measured
            if duration > largest:
                duration = largest = min(duration, LARGEST_NS)
            elif duration < 0:
                duration = 0
            shift = duration.bit_length() - 8
            counts[(shift << 7) + (duration >> shift) if shift > 0 else duration] += 1
            total += duration
            samples += 1
        self._largest_ns = largest
        self._total_ns += total
        self.samples += samples

    def merge(self, other: Histogram) -> None:
        """Add what `other` has counted."""
        self._counts = [mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)]
        self._largest_ns = max(self._largest_ns, other._largest_ns)
        self._total_ns += other._total_ns
        self.samples += other.samples

    def quantile_ns(self, fraction: float) -> int:
        """The smallest step that `fraction` (0 to 1) of the samples do not exceed; 0 when there are none."""
        rank = max(1, math.ceil(fraction * self.samples))
        passed = 0
        for index, count in enumerate(self._counts):
            passed += count
            if passed >= rank:
                return min(_upper_edge_ns(index), self._largest_ns)
        return self._largest_ns

    def summary(self) -> LatencySummary:
        """The quantiles that reports show."""
        if not self.samples:
            return LatencySummary(samples=0)
        return LatencySummary(
            samples=self.samples,
            p50_ms=_milliseconds(self.quantile_ns(0.5)),
            p99_ms=_milliseconds(self.quantile_ns(0.99)),
            p999_ms=_milliseconds(self.quantile_ns(0.999)),
            max_ms=_milliseconds(self._largest_ns),
            mean_ms=_milliseconds(self._total_ns / self.samples),
        )


def _upper_edge_ns(index: int) -> int:
    """The largest duration that the counter at `index` holds."""
    if index < 2 << STEP_BITS:
        return index
    shift = (index >> STEP_BITS) - 1
    step = index - (shift << STEP_BITS)
    return ((step + 1) << shift) - 1


def _milliseconds(nanoseconds: float) -> float:
    return round(nanoseconds / 1e6, 4)
