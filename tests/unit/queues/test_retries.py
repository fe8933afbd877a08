"""The schedule of retries."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embermq.model.queue_rows import Attempts, DeadLetterReason
from embermq.queues.durations import Duration
from embermq.queues.retries import OVER_MAX, RetryWaits, backoff_ms, limited, wait_of
from embermq.queues.settings import NackDelay, RetryPolicy


def test_the_schedule() -> None:
    waits = [backoff_ms(RetryPolicy(), step) / 1_000 for step in range(1, 9)]
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]


@given(
    st.integers(0, 10_000),
    st.integers(1, 10_000_000),
    st.floats(1, 100, allow_nan=False),
    st.integers(1, 10_000),
)
def test_it_never_shrinks_and_never_passes_its_cap(
    initial: int, cap: int, multiplier: float, step: int
) -> None:
    policy = RetryPolicy(
        initial_backoff=Duration(min(initial, cap)), max_backoff=Duration(cap), backoff_multiplier=multiplier
    )
    waits = [backoff_ms(policy, step) for step in (step, step + 1, step + 500)]
    assert all(earlier <= later <= cap for earlier, later in pairwise(waits))


def waits_after(policy: RetryPolicy, kinds: str) -> list[int]:
    """Seconds that a message waits after each failure: n for a nack, t for a lease that is over."""
    attempts, waits = Attempts(), []
    for kind in kinds:
        wait_ms, uses_step = wait_of(policy, attempts, is_nack=kind == "n")
        waits.append(wait_ms // 1_000)
        attempts = Attempts(
            failures=attempts.failures + 1,
            nacks=attempts.nacks + (kind == "n"),
            steps=attempts.steps + uses_step,
        )
    return waits


@pytest.mark.parametrize(
    ("nack_delay", "kinds", "waits"),
    [
        (NackDelay.FIRST_IMMEDIATE, "nnnn", [0, 5, 10, 20]),
        (NackDelay.FIRST_IMMEDIATE, "tttt", [5, 10, 20, 40]),
        (NackDelay.FIRST_IMMEDIATE, "tntn", [5, 0, 10, 20]),
        (NackDelay.IMMEDIATE, "nntn", [0, 0, 5, 0]),
        (NackDelay.BACKOFF, "nnnnnnnn", [5, 10, 20, 40, 80, 160, 300, 300]),
    ],
)
def test_what_a_failure_waits(nack_delay: NackDelay, kinds: str, waits: list[int]) -> None:
    assert waits_after(RetryPolicy(nack_delay=nack_delay), kinds) == waits


@pytest.mark.promise("queues-25")
@pytest.mark.parametrize(
    ("failures", "first_ms", "now_ms", "found"),
    [
        (1, 0, 500, (900, "")),
        (2, 100, 500, (900, "")),
        (3, 100, 500, (900, DeadLetterReason.MAX_RETRIES)),
        (1, 50, 500, (900, "")),
        (1, 20, 500, (870, "")),
        (1, 20, 869, (870, "")),
        (1, 20, 870, (900, DeadLetterReason.TIMEOUT)),
        (3, 20, 870, (900, DeadLetterReason.MAX_RETRIES)),
    ],
)
def test_how_often_and_how_long_it_is_tried(
    failures: int, first_ms: int, now_ms: int, found: tuple[int, str]
) -> None:
    policy = RetryPolicy(max_retries=2, total_timeout=Duration(850))
    attempts = Attempts(failures=failures, first_delivered_ms=first_ms)
    assert limited(policy, attempts, 900, now_ms) == found


@pytest.mark.promise("queues-24")
def test_they_are_over_in_the_order_of_time() -> None:
    until = {1: 300, 2: 100, 3: 200}
    waits = RetryWaits(lambda sequence: until.get(sequence, 0))
    for sequence, due_ms in until.items():
        waits.add(sequence, due_ms, 3)
    assert (len(waits), waits.first_ms()) == (3, 100)
    assert waits.take(99) is None
    assert [waits.take(200), waits.take(200), waits.take(200)] == [2, 3, None]
    assert (len(waits), waits.first_ms()) == (1, 300)
    assert waits.take(300) == 1 and waits.first_ms() == 0


def test_what_was_settled_or_waits_for_another_time_is_passed_over() -> None:
    until = {1: 500}
    waits = RetryWaits(lambda sequence: until.get(sequence, 0))
    for sequence, due_ms in ((1, 100), (2, 100), (1, 500)):
        waits.add(sequence, due_ms, 2)
    assert [waits.take(500) for _ in range(4)] == [0, 0, 1, None]


@pytest.mark.promise("queues-43")
def test_few_of_those_are_kept() -> None:
    waits = RetryWaits(lambda sequence: 900 if sequence == 7 else 0)
    waits.add(7, 900, 1)
    for due_ms in range(1, 5 * OVER_MAX):
        waits.add(8, due_ms, 1)
    assert len(waits) <= OVER_MAX + 2
    while (found := waits.take(10 * OVER_MAX)) == 0:
        pass
    assert found == 7
