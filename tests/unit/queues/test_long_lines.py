"""Very much that happens at once is done in pieces, and what is gone is not remembered."""

from __future__ import annotations

import pytest
from tests.support.queue_bench import Bench

from embermq.model.queue_rows import DelayedRow
from embermq.queues.consumer import LATEST, Consumer
from embermq.queues.delayed import GONE_MAX, DelayedMessages
from embermq.queues.names import Verb
from embermq.queues.partitioner import assign
from embermq.queues.retries import OVER_MAX
from embermq.queues.scans import ADVANCED_MAX, STANDINGS_MAX
from embermq.queues.settling import Outcome

MANY = 2 * ADVANCED_MAX + 500


def fills(bench: Bench, groups: tuple[str, ...], prefetch: int = MANY) -> None:
    for group in groups:
        bench.join(f"c-{group}", group, prefetch=prefetch, concurrency=prefetch)
    bench.publish(count=MANY)
    bench.wait("0s")


@pytest.mark.promise("queues-43")
def test_very_many_leases_that_are_over_at_once_end_in_pieces() -> None:
    bench = Bench(ordering="none", retry_policy={"nack_delay": "backoff"})
    fills(bench, ("g", "h"))
    assert len(bench.take()) == 2 * MANY
    bench.now_ms += 30_000
    groups = bench.queues.queue("q").groups.values()
    failed: list[int] = []
    while bench.queues.next_due_ms() is not None and (bench.queues.next_due_ms() or 0) <= bench.now_ms:
        before = sum(group.in_backoff()[0] for group in groups)
        bench.queues.run(bench.now_ms)
        failed.append(sum(group.in_backoff()[0] for group in groups) - before)
    assert max(failed) == ADVANCED_MAX and sum(failed) == 2 * MANY
    bench.now_ms += 5_000
    back: list[int] = []
    while (bench.queues.next_due_ms() or 0) <= bench.now_ms and sum(back) < 2 * MANY:
        back.append(len(bench.queues.run(bench.now_ms)))
    assert max(back) == ADVANCED_MAX and sum(back) == 2 * MANY


@pytest.mark.promise("queues-16")
@pytest.mark.parametrize("may_return", [False, True])
def test_partitions_are_spread_once_for_all_that_leave_at_once(
    monkeypatch: pytest.MonkeyPatch, may_return: bool
) -> None:
    bench = Bench(partitions=10)
    for number in range(50):
        bench.join(f"c{number}")
    bench.wait("1s")
    group = bench.queues.queue("q").groups["g"]
    spread = 0

    def counted(partitions: int, members: list[Consumer]) -> list[Consumer | None]:
        nonlocal spread
        spread += 1
        return assign(partitions, members)

    monkeypatch.setattr("embermq.queues.lanes.assign", counted)
    for number in range(1, 50):
        bench.queues.leave("q", "g", f"c{number}", bench.now_ms, may_return=may_return)
    bench.wait("6s")
    assert spread == 1 and group.lanes.owners() == ["c0"] * 10
    bench.publish(count=20)
    assert {delivery.client_id for delivery in bench.take()} == {"c0"}
    bench.leave("c0")
    assert group.lanes.owners() == [""] * 10


def test_what_is_acked_late_does_not_wait_on() -> None:
    bench = Bench(partitions=1)
    bench.join("c")
    for _ in range(OVER_MAX + 50):
        bench.publish()
        delivery = bench.one()
        assert bench.settle(delivery, Verb.NACK, 1_000_000_000) is Outcome.DONE
        assert bench.settle(delivery, Verb.ACK) is Outcome.DONE
    assert bench.queues.queue("q").groups["g"].in_backoff()[0] <= OVER_MAX
    bench.publish()
    assert bench.settle(bench.one(), Verb.NACK, 5_000) is Outcome.DONE
    bench.wait("5s")
    assert bench.one().stamps.delivery_count == 2


@pytest.mark.promise("queues-31")
def test_the_line_behind_a_key_forgets_what_was_dropped() -> None:
    bench = Bench(ordering="strict", partitions=1, limits={"max_queue_depth": 10, "overflow": "drop-head"})
    bench.join("c")
    for _ in range(500):
        bench.publish()
    first = bench.one()
    (lane,) = bench.queues.queue("q").groups["g"].lanes._lanes
    (turn,) = lane.turns.values()
    assert turn.waiting is not None and len(turn.waiting) <= 10 and lane.blocked == 1
    assert bench.queues.purge("q", bench.queues.queue("q").end(), 1) == 1, "what it holds"
    bench.run()
    assert bench.settle(first, Verb.ACK) is Outcome.ALREADY_SETTLED
    assert bench.one().offset == 491
    assert bench.queues.purge("q", bench.queues.queue("q").end(), 100) == 9
    assert lane.blocked == 0 and not lane.turns


@pytest.mark.promise("queues-31")
def test_the_line_behind_a_key_forgets_what_ended_in_its_midst() -> None:
    bench = Bench(ordering="strict", partitions=1)
    bench.join("c")
    bench.publish(count=2)
    held = bench.one()
    for _ in range(3 * GONE_MAX):
        bench.publish(expires_ms=bench.now_ms + 1)
        bench.now_ms += 2
        bench.run()
    bench.publish(count=3)
    (lane,) = bench.queues.queue("q").groups["g"].lanes._lanes
    (turn,) = lane.turns.values()
    assert turn.waiting is not None and len(turn.waiting) <= 2 * GONE_MAX
    order: list[int] = []
    while bench.settle(held, Verb.ACK) is Outcome.DONE and len(order) < 4:
        held = bench.one()
        order.append(held.offset)
    assert order == [1, *range(3 * GONE_MAX + 2, 3 * GONE_MAX + 5)] and not lane.turns and lane.blocked == 0


@pytest.mark.promise("queues-31")
def test_what_ends_by_itself_ends_also_when_the_one_before_it_has_just_gone() -> None:
    bench = Bench(partitions=1, limits={"message_ttl": "60s"}, retry_policy={"total_timeout": "5s"})
    bench.join("c", prefetch=1)
    bench.publish(count=3)
    assert bench.settle(bench.one(), Verb.NACK, 7_000) is Outcome.DONE
    held = bench.one()
    bench.leave("c")
    assert held.offset == 1
    bench.wait("5s")
    assert bench.dead() == [("g", "timeout")] and len(bench.queues.queue("q").entries) == 2
    bench.wait("60s")
    assert not bench.queues.queue("q").entries, "nobody else has looked at the queue"


def test_delayed_messages_that_are_purged_are_looked_at_once() -> None:
    delayed = DelayedMessages()
    count = 20 * GONE_MAX
    for ticket in range(count):
        delayed.add(DelayedRow(1, ticket, ticket, -1, None, 10 + ticket % 1_000, 0))
    made = 0
    restore = delayed.restore

    def counted(rows: object) -> None:
        nonlocal made
        made += len(delayed)
        restore(list(delayed.rows.values()))

    delayed.restore = counted  # type: ignore[method-assign]
    while len(delayed) > 5:
        assert delayed.take(count - 5, 1_000)
    assert made < count, "less than once each, for all calls together"
    assert delayed.take(count - 5, 1_000) == [] and delayed.first_ms() <= 995 + 10
    assert [row.ticket for row in delayed.due(2_000, 10_000)] == list(range(count - 5, count))
    assert delayed.first_ms() == 0


def test_stale_times_of_delayed_messages_are_passed_over_in_pieces() -> None:
    delayed = DelayedMessages()
    for ticket in range(500):
        delayed.add(DelayedRow(1, ticket, ticket, -1, None, 1_000 - ticket, 0))
    assert len(delayed.take(400, 400)) == 400
    found = [delayed.due(2_000, 90) for _ in range(10)]
    assert [row.ticket for piece in found for row in piece] == list(range(499, 399, -1))


@pytest.mark.promise("queues-43")
def test_what_ends_or_comes_at_once_is_less_where_there_are_many_groups() -> None:
    bench = Bench(limits={"message_ttl": "20s"})
    groups, count = 100, 250
    for number in range(groups):
        bench.queues.open_group("q", f"g{number}", bench.now_ms)
    bench.publish(count=count, visible_ms=bench.now_ms + 5_000)
    queue = bench.queues.queue("q")
    piece = STANDINGS_MAX // groups
    for waited_ms in (5_000, 20_000):
        bench.now_ms += waited_ms
        pieces: list[int] = []
        while (bench.queues.next_due_ms() or bench.now_ms + 1) <= bench.now_ms:
            before = len(queue.entries)
            bench.queues.run(bench.now_ms)
            pieces.append(abs(len(queue.entries) - before))
        assert max(pieces) == piece and sum(pieces) == count


@pytest.mark.promise("queues-43")
def test_a_group_goes_in_smaller_pieces_where_there_are_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embermq.queues.scans.LOOKS_MAX", 1_000)
    bench = Bench()
    bench.queues.open_group("q", "gone", bench.now_ms)
    bench.publish(count=500)
    for number in range(20):
        bench.queues.open_group("q", f"g{number}", bench.now_ms, start=LATEST)
    assert bench.queues.remove_group("q", "gone")
    left: list[int] = []
    while bench.queues.next_due_ms() == 0:
        bench.queues.run(bench.now_ms)
        left.append(len(bench.queues.queue("q").entries))
    assert left[:3] == [450, 400, 350] and left[-1] == 0
