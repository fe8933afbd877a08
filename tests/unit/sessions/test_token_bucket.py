"""Rates: what was not used is saved for a second, what was borrowed has to come back."""

from __future__ import annotations

from embermq.sessions.token_bucket import TokenBucket


def taken(bucket: TokenBucket, now_ms: int, tries: int) -> int:
    return sum(bucket.take(now_ms) for _ in range(tries))


def test_a_second_is_saved_and_no_more() -> None:
    bucket = TokenBucket(10, 0)
    assert taken(bucket, 0, 100) == 10
    assert taken(bucket, 50, 100) == 0
    assert taken(bucket, 100, 100) == 1
    assert taken(bucket, 60_000, 100) == 10


def test_over_a_long_time_the_rate_is_met() -> None:
    bucket = TokenBucket(7, 0)
    assert taken(bucket, 0, 7) == 7
    assert sum(bucket.take(now_ms) for now_ms in range(1, 10_001)) == 70


def test_what_is_borrowed_has_to_come_back() -> None:
    bucket = TokenBucket(10, 0)
    assert [bucket.borrow(0) for _ in range(10)] == [0] * 10
    assert [bucket.borrow(0) for _ in range(3)] == [100, 200, 300]
    assert not bucket.has_one(399)
    assert bucket.borrow(400) == 0


def test_a_clock_that_steps_back_gives_and_takes_nothing() -> None:
    bucket = TokenBucket(10, 10_000)
    assert taken(bucket, 10_000, 4) == 4
    assert taken(bucket, 0, 100) == 6
    assert taken(bucket, 100, 100) == 1
