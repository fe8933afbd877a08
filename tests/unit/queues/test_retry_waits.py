"""Waits for a retry: in the order of time, and what ended in another way is passed over and let go of."""

import pytest

from embermq.queues.retry_waits import OVER_MAX, RetryWaits


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
