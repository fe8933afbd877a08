"""Durations are counted under the smallest bound that they do not exceed."""

from __future__ import annotations

import pytest

from embermq.model.durations import BOUNDS_S, Durations, quantile_s


@pytest.mark.parametrize(
    ("duration_s", "place"),
    [
        (0.0, 0),
        (BOUNDS_S[0], 0),
        (BOUNDS_S[0] * 1.01, 1),
        (BOUNDS_S[-1], len(BOUNDS_S) - 1),
        (BOUNDS_S[-1] * 2, len(BOUNDS_S)),
    ],
)
def test_a_bound_belongs_to_what_is_below_it(duration_s: float, place: int) -> None:
    durations = Durations()
    durations.add(duration_s, 3)
    found = durations.snapshot()
    assert [index for index, count in enumerate(found.counts) if count] == [place]
    assert sum(found.counts) == 3
    assert found.sum_s == pytest.approx(3 * duration_s)


def test_a_snapshot_stays_as_it_was() -> None:
    durations = Durations()
    before = durations.snapshot()
    durations.add(1.0)
    assert sum(before.counts) == 0


def test_a_quantile_is_taken_from_the_bucket_that_has_it() -> None:
    durations = Durations()
    assert quantile_s(durations.snapshot().counts, 0.5) is None
    durations.add(0.003, 98)
    durations.add(60.0, 2)
    counts = durations.snapshot().counts
    assert 0.0025 < (quantile_s(counts, 0.5) or 0) < 0.005
    assert quantile_s(counts, 0.99) == BOUNDS_S[-1]
