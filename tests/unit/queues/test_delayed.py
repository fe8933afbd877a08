"""Messages whose time has not come."""

from __future__ import annotations

from embermq.model.queue_rows import DelayedRow
from embermq.queues.delayed import DelayedMessages


def row(ticket: int, visible_ms: int) -> DelayedRow:
    return DelayedRow(1, ticket, ticket, -1, None, visible_ms, 0)


def test_they_come_in_the_order_of_time_whatever_was_taken_out() -> None:
    delayed = DelayedMessages()
    times = [70, 10, 60, 20, 50, 30, 40]
    for ticket, visible_ms in enumerate(times):
        delayed.add(row(ticket, visible_ms))
    assert [each.ticket for each in delayed.take(3, 2)] == [0, 1]
    assert [each.ticket for each in delayed.take(3, 2)] == [2]
    assert delayed.take(3, 2) == []
    assert delayed.first_ms() == 20 and len(delayed) == 4
    assert [each.visible_ms for each in delayed.due(40, 9)] == [20, 30, 40]
    assert [each.visible_ms for each in delayed.due(100, 9)] == [50]
    assert delayed.first_ms() == 0 and not delayed


def test_what_was_stored_comes_as_it_would_have() -> None:
    delayed = DelayedMessages()
    delayed.restore([row(1, 30), row(2, 10), row(3, 20)])
    assert delayed.first_ms() == 10
    assert [each.ticket for each in delayed.due(30, 9)] == [2, 3, 1]
