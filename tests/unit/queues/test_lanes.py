"""The lanes of a group by themselves: who gets which message next, in which order, and who has to wait."""

from __future__ import annotations

import pytest

from embermq.queues.consumer import Client, Consumer, Newcomer
from embermq.queues.entries import Entries
from embermq.queues.lanes import QueueLanes
from embermq.queues.settings import Ordering, QueueSettings

PREFETCH = 32


class LanesBench:
    """Messages by their sequence, and consumers that hold what they take."""

    def __init__(
        self, partitions: int, ordering: Ordering, *consumers: str, prefetch: int = PREFETCH
    ) -> None:
        self.entries = Entries()
        self.settled: set[int] = set()
        self.settings = QueueSettings(name="q", partitions=partitions, ordering=ordering)
        self.lanes = QueueLanes(self.entries, self.settings, lambda sequence: sequence not in self.settled)
        self.members = [
            Consumer(Newcomer(name, 1, prefetch), at_ms, Client(int))
            for at_ms, name in enumerate(consumers, 1)
        ]
        for consumer in self.members:
            self.lanes.update_room(consumer)
        self.lanes.rebalance(self.members)

    def comes(self, sequence: int, partition: int = 0, key: str | None = None) -> None:
        self.entries.put(sequence, partition, sequence, 1_000_000, key)
        self.lanes.add(sequence)

    def taken(self, batch: int = 1) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        for sequence, consumer in self.lanes.take(batch):
            consumer.hold(sequence, is_suspect=False)
            found.append((sequence, consumer.client_id))
        return found

    def settles(self, sequence: int, number: int = 0) -> None:
        self.settled.add(sequence)
        self.members[number].let_go(sequence)
        self.lanes.update_room(self.members[number])
        self.lanes.end_turn(sequence)


@pytest.mark.promise("queues-15")
def test_without_an_order_the_least_loaded_takes_next_so_many_at_a_time() -> None:
    bench = LanesBench(10, Ordering.NONE, "a", "b")
    for sequence in range(1, 7):
        bench.comes(sequence, partition=sequence)
    assert bench.lanes.owners() == [] and not bench.lanes.is_pinned
    assert bench.taken(2) == [(1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "a"), (6, "a")]
    assert not bench.lanes.has_work()
    bench.settles(1)
    bench.settles(2)
    bench.comes(7)
    assert bench.lanes.has_work() and bench.taken() == [(7, "b")], (
        "of two that hold as much, who waits longest"
    )


@pytest.mark.promise("queues-15", "queues-16")
def test_a_lane_belongs_to_one_consumer_and_only_what_moves_is_listed_again() -> None:
    bench = LanesBench(4, Ordering.PARTITION, "a")
    for sequence in range(1, 5):
        bench.comes(sequence, partition=sequence - 1)
    late = Consumer(Newcomer("b", 1, PREFETCH), 2, Client(int))
    bench.lanes.rebalance([late, *bench.members])
    assert bench.lanes.owners() == ["a", "a", "b", "b"], "by the time of joining, whatever the order told"
    assert bench.taken() == [(1, "a"), (3, "b"), (2, "a"), (4, "b")], (
        "one after another, of another lane each"
    )
    bench.members[0].is_stalled = True
    bench.lanes.rebalance([*bench.members, late])
    assert bench.lanes.owners() == ["b"] * 4
    late.is_stalled = True
    bench.lanes.rebalance([*bench.members, late])
    assert bench.lanes.owners() == ["a", "a", "b", "b"], "when all have stalled there is nobody better"


@pytest.mark.promise("queues-30", "queues-42a")
def test_one_of_a_key_is_out_and_the_others_wait_behind_it() -> None:
    bench = LanesBench(1, Ordering.PARTITION, "a")
    for sequence, key in enumerate(("k", "k", "other", None, "k"), 1):
        bench.comes(sequence, key=key)
    assert bench.taken(5) == [(1, "a"), (3, "a"), (4, "a")]
    assert [bench.lanes.blocker(sequence) for sequence in range(1, 6)] == [0, 1, 0, 0, 1]
    assert bench.lanes.blocked_keys() == 1 and bench.lanes.blocking(9) == [("k", 1)]
    bench.settles(2)
    bench.lanes.drop(2)
    bench.settles(1)
    assert bench.taken() == [(5, "a")] and bench.lanes.blocked_keys() == 0
    bench.members[0].let_go(5)
    bench.lanes.update_room(bench.members[0])
    bench.lanes.give_back(5)
    bench.comes(6, key="k")
    assert bench.taken() == [(5, "a")], "what came back is before what is younger"


@pytest.mark.promise("queues-30")
def test_a_strict_queue_has_one_turn() -> None:
    bench = LanesBench(1, Ordering.STRICT, "a")
    for sequence in (7, 8):
        bench.comes(sequence)
    bench.lanes.take_turn(7)  # it was out before the start
    assert bench.taken(2) == [(7, "a")] and bench.lanes.blocker(8) == 7
    bench.settles(7)
    assert bench.taken(2) == [(8, "a")]


@pytest.mark.promise("queues-32")
@pytest.mark.parametrize("ordering", [Ordering.NONE, Ordering.PARTITION])
def test_who_has_no_room_or_is_forgotten_gets_nothing(ordering: Ordering) -> None:
    bench = LanesBench(1, ordering, "a", prefetch=2)
    for sequence in range(1, 5):
        bench.comes(sequence)
    assert bench.taken(9) == [(1, "a"), (2, "a")] and not bench.lanes.has_work()
    bench.settles(1)
    assert bench.lanes.has_work()
    bench.lanes.forget(bench.members[0])
    assert not bench.lanes.has_work() and bench.taken() == []
    bench.lanes.list_again(bench.members[0])
    bench.lanes.update_room(bench.members[0])
    assert bench.taken() == [(3, "a")]


@pytest.mark.promise("queues-10")
def test_nothing_is_left_of_the_lanes_that_were_when_the_ordering_changes() -> None:
    bench = LanesBench(2, Ordering.PARTITION, "a", prefetch=1)
    bench.comes(1)
    assert bench.taken() == [(1, "a")]
    bench.settles(1)
    assert bench.lanes.has_work(), "its owner has room, and is to find out that there is no more"
    bench.lanes.configure(QueueSettings(name="q", ordering=Ordering.NONE), bench.members)
    assert not bench.lanes.has_work()
    bench.lanes.configure(bench.settings, bench.members)
    assert not bench.lanes.has_work() and bench.lanes.owners() == ["", ""]
