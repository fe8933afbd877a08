"""The histogram against sorted samples."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from embermq_bench.latency import LARGEST_NS, Histogram

DURATIONS = st.lists(st.integers(min_value=0, max_value=10**11), min_size=1, max_size=200)


@given(DURATIONS, st.sampled_from([0.0, 0.5, 0.99, 0.999, 1.0]))
def test_a_quantile_is_within_a_step_of_the_exact_one(durations: list[int], fraction: float) -> None:
    histogram = Histogram()
    histogram.record_all(durations)
    exact = sorted(durations)[max(1, math.ceil(fraction * len(durations))) - 1]
    assert exact <= histogram.quantile_ns(fraction) <= exact * (1 + 1 / 128) + 1


@given(DURATIONS, DURATIONS)
def test_merging_equals_recording_all(first: list[int], second: list[int]) -> None:
    apart, other, together = Histogram(), Histogram(), Histogram()
    apart.record_all(first)
    other.record_all(second)
    apart.merge(other)
    together.record_all(first + second)
    assert apart.summary() == together.summary()


def test_the_largest_is_exact() -> None:
    histogram = Histogram()
    histogram.record_all([5, 123_456_789, 7])
    assert histogram.summary().max_ms == 123.4568
    assert histogram.quantile_ns(1.0) == 123_456_789


def test_out_of_range_durations_count_at_the_edges() -> None:
    histogram = Histogram()
    histogram.record_all([-5, LARGEST_NS * 10])
    assert histogram.samples == 2
    assert histogram.quantile_ns(0.5) == 0
    assert histogram.quantile_ns(1.0) == LARGEST_NS


def test_nothing_measured_has_no_quantiles() -> None:
    summary = Histogram().summary()
    assert summary.samples == 0
    assert summary.p50_ms is summary.max_ms is None
