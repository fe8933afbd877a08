"""Messages that are not acknowledged in time: sent again, parked or skipped, by version and by strategy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embermq.delivery.application.lane import (
    AckStrategy,
    Overdue,
    OverdueStep,
    OverdueVerdict,
    ResendCounts,
)

TIMEOUT_MS = 20_000


def overdue(
    *,
    attempts: ResendCounts | None = None,
    strategy: AckStrategy = AckStrategy.RETRY_ALL,
    retries: int = 3,
    may_resend: bool = True,
) -> Overdue:
    return Overdue(
        ResendCounts() if attempts is None else attempts,
        strategy=strategy,
        timeout_ms=TIMEOUT_MS,
        retries=retries,
        may_resend=may_resend,
    )


def test_nothing_is_late_that_was_acknowledged_or_has_time() -> None:
    watch = overdue()
    assert watch.due_ms(0) == 0
    watch.sent(9, 1_000)
    watch.sent(19, 5_000)
    assert watch.due_ms(3) == 21_000
    assert watch.look(20_999, [3, 12]) == []
    assert watch.due_ms(10) == 25_000
    assert watch.look(24_999, [12]) == []
    assert watch.due_ms(20) == 0
    assert watch.look(99_000, []) == []


def test_a_late_pack_is_sent_again_and_timed_anew() -> None:
    watch = overdue()
    watch.sent(9, 1_000)
    watch.sent(19, 5_000)
    assert watch.look(21_000, [3, 7, 12]) == [OverdueVerdict(OverdueStep.RESEND, (3, 7))]
    assert watch.due_ms(3) == 25_000
    assert watch.look(25_000, [3, 7, 12]) == [OverdueVerdict(OverdueStep.RESEND, (12,))]
    assert watch.due_ms(3) == 41_000


@pytest.mark.parametrize("retries", [1, 3])
def test_what_was_sent_again_in_vain_is_parked(retries: int) -> None:
    watch = overdue(retries=retries)
    watch.sent(9, 0)
    for round_number in range(1, retries + 1):
        assert watch.look(round_number * TIMEOUT_MS, [3]) == [OverdueVerdict(OverdueStep.RESEND, (3,))]
    assert watch.look((retries + 1) * TIMEOUT_MS, [3]) == [OverdueVerdict(OverdueStep.RESEND, (), (3,))]
    assert watch.due_ms(4) == 0


def test_without_a_limit_nothing_is_parked() -> None:
    watch = overdue(retries=0)
    watch.sent(9, 0)
    for round_number in range(1, 100):
        assert watch.look(round_number * TIMEOUT_MS, [3]) == [OverdueVerdict(OverdueStep.RESEND, (3,))]


def test_mqtt_5_is_sent_away_and_attempts_outlive_that() -> None:
    attempts = ResendCounts()
    for connection in range(2):
        watch = overdue(attempts=attempts, retries=2, may_resend=False)
        watch.sent(9, 0)
        late = [3] if connection == 0 else [3, 5]
        assert watch.look(TIMEOUT_MS, late) == [OverdueVerdict(OverdueStep.DISCONNECT, tuple(late))]
    watch = overdue(attempts=attempts, retries=2, may_resend=False)
    watch.sent(9, 0)
    assert watch.look(TIMEOUT_MS, [3, 5]) == [OverdueVerdict(OverdueStep.DISCONNECT, (5,), (3,))]
    watch = overdue(attempts=attempts, retries=2, may_resend=False)
    watch.sent(9, 0)
    assert watch.look(TIMEOUT_MS, [5]) == [OverdueVerdict(OverdueStep.RESEND, (), (5,))], (
        "nobody need go for it"
    )
    assert len(attempts) == 2
    watch.due_ms(5)
    assert len(attempts) == 1
    watch.due_ms(6)
    assert len(attempts) == 0


def test_skipping_asks_nobody() -> None:
    watch = overdue(strategy=AckStrategy.SKIP_ALL, may_resend=False)
    watch.sent(9, 0)
    assert watch.look(TIMEOUT_MS, [3, 5]) == [OverdueVerdict(OverdueStep.SKIP, (3, 5))]
    assert watch.look(2 * TIMEOUT_MS, [3, 5]) == []


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sets(st.integers(0, 59), max_size=10)), max_size=30),
    st.sampled_from(AckStrategy),
    st.integers(0, 3),
)
def test_everything_unacknowledged_is_dealt_with_in_time(
    steps: list[tuple[int, set[int]]], strategy: AckStrategy, retries: int
) -> None:
    """Every second round sends ten; whatever is not acknowledged has a verdict within the timeout, and none after it
    is parked or skipped."""
    watch, now_ms, sent_to = overdue(strategy=strategy, retries=retries), 0, 0
    waiting: dict[int, int] = {}
    for passes_s, acknowledged in steps:
        now_ms += passes_s * 1_000
        if sent_to < 60:
            watch.sent(sent_to + 9, now_ms)
            waiting |= dict.fromkeys(range(sent_to, sent_to + 10), now_ms)
            sent_to += 10
        for offset in acknowledged:
            waiting.pop(offset, None)
        floor = min(waiting, default=sent_to)
        due_ms = watch.due_ms(floor)
        assert bool(due_ms) is bool(waiting)
        late = {offset for offset, sent_ms in waiting.items() if now_ms - sent_ms >= TIMEOUT_MS}
        judged: list[int] = []
        for verdict in watch.look(now_ms, waiting):
            judged += (*verdict.overdue, *verdict.parked)
            for offset in verdict.parked if verdict.step is OverdueStep.RESEND else judged:
                waiting.pop(offset, None)
            waiting |= dict.fromkeys(verdict.overdue, now_ms) if verdict.step is OverdueStep.RESEND else {}
        assert sorted(judged) == sorted(late)
