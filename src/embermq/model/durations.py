"""Durations counted by how long they were, as Prometheus wants them."""

from bisect import bisect_left

from msgspec import Struct

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds: from a fast disk to a store that hangs."""


class DurationCounts(Struct, frozen=True):
    """A snapshot: how many durations were at most `BOUNDS_S[i]` seconds and above the bound before it; in the last
    place how many were longer than all bounds; and the sum of all, in seconds."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0


class Durations:
    """Counts durations; a call costs a third of a microsecond."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, duration_s: float, times: int = 1) -> None:
        """Count one duration, in seconds, as often as something took that long."""
        self._counts[bisect_left(BOUNDS_S, duration_s)] += times
        self._sum_s += duration_s * times

    def snapshot(self) -> DurationCounts:
        """What was counted up to now."""
        return DurationCounts(tuple(self._counts), self._sum_s)


def quantile_s(counts: tuple[int, ...], share: float) -> float | None:
    """About the duration that this share of those that were counted do not exceed, as Prometheus takes it from a
    histogram; None when nothing was counted. What is longer than all bounds counts as the last of them."""
    left = sum(counts) * share
    if not left:
        return None
    low = 0.0
    for count, high in zip(counts, BOUNDS_S, strict=False):
        if count and left <= count:
            return low + (high - low) * left / count
        left -= count
        low = high
    return BOUNDS_S[-1]
