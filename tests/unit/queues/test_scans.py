"""Groups of large queues come and go in pieces: nobody waits for all messages of a queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.queue_bench import START_MS, TIMING, Bench
from tests.support.queue_writes import GatheredWrites

from embermq.model.queue_rows import EntryRow, GroupRow, MessageState, QueueSettingsRow, StoredQueue
from embermq.queues.consumer import EARLIEST, LATEST, Newcomer
from embermq.queues.entries import BLOCK, Entries
from embermq.queues.explaining import explain
from embermq.queues.names import Verb
from embermq.queues.publication import Publication
from embermq.queues.queue import Queue
from embermq.queues.queues import Queues
from embermq.queues.scans import PIECE
from embermq.queues.settings import format_settings, parse_settings
from embermq.queues.settling import Outcome

MANY = 300_000
TTL_MS = 7 * 24 * 3_600_000


@pytest.fixture
def by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embermq.queues.queues.PIECE", 2)


def many(*groups: str) -> Queues:
    def entries() -> Iterator[EntryRow]:
        for sequence in range(1, MANY + 1):
            yield EntryRow(1, sequence, sequence % 10, sequence, -1, None, START_MS + TTL_MS)

    row = QueueSettingsRow(1, "q", format_settings(parse_settings("q", b"{}")), MANY + 1)
    rows = tuple(GroupRow(1, group, 0, 0) for group in groups)
    queues = Queues(TIMING, 1, GatheredWrites())
    queues.restore([StoredQueue(row, rows, entries(), (), {}, {})], START_MS)
    queues.run(START_MS)
    return queues


class Looks:
    """How many messages of a queue were looked at: those that its groups were offered, and those that are gone."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._taken = 0
        self.take()

    @property
    def count(self) -> int:
        offered = (min(max(1, group.unfilled_from), MANY + 1) - 1 for group in self._queue.groups.values())
        return sum(offered) + MANY - len(self._queue.entries) - self._taken

    def take(self) -> int:
        count = self.count
        self._taken += count
        return count


@pytest.mark.promise("queues-43")
def test_a_new_group_of_a_large_queue_holds_up_nobody() -> None:
    queues = many()
    queue = queues.queue("q")
    looks = Looks(queue)
    queues.join("q", "g", Newcomer("c", 1, 32), START_MS)
    assert looks.take() == 0 and queue.depth() == queue.groups["g"].owed == MANY
    assert len(queues.run(START_MS)) == 32, "what it has come to is delivered at once"
    longest = total = looks.take()
    assert [reason.code for reason in explain(queue, START_MS)][-1] == "filling"
    while queues.next_due_ms() == 0:
        assert queues.run(START_MS) == []
        longest, total = max(longest, looks.count), total + looks.take()
    assert longest == PIECE and total == MANY and queue.depth() == MANY
    assert "filling" not in [reason.code for reason in explain(queue, START_MS)]


@pytest.mark.promise("queues-43")
def test_many_new_groups_share_one_piece() -> None:
    queues = many()
    looks = Looks(queues.queue("q"))
    for number in range(5):
        queues.join("q", f"g{number}", Newcomer("c", 1, 32), START_MS)
    for _ in range(10):
        queues.run(START_MS)
        assert looks.take() == PIECE


@pytest.mark.promise("queues-43", "queues-17")
def test_a_group_with_a_large_debt_goes_without_holding_up_anybody() -> None:
    queues = many("g")
    queues.open_group("q", "h", START_MS, start=LATEST)
    queue = queues.queue("q")
    assert queues.remove_group("q", "g") and len(queue.entries) == MANY and queue.depth() == 0
    looks = Looks(queue)
    longest = 0
    while queues.next_due_ms() == 0:
        queues.run(START_MS)
        longest = max(longest, looks.take())
    assert longest == PIECE
    assert not queue.entries


def test_at_offset_passes_over_what_is_gone() -> None:
    entries = Entries()
    entries.put(1, 0, 900, 0, None)
    entries.put(2, 0, 10, 0, None)
    entries.put(BLOCK + 1, 0, 950, 0, None)
    entries.remove(1)
    assert entries.at_offset(500) == BLOCK + 1
    assert entries.at_offset(951) == -1
    assert entries.count_from(2) == 2 and entries.count_from(3) == 1 and entries.count_from(BLOCK + 2) == 0


@pytest.mark.usefixtures("by_two")
def test_what_another_group_acks_before_it_was_offered_stays_for_the_new_one() -> None:
    bench = Bench(partitions=1)
    bench.join("c")
    bench.publish(count=9)
    held = bench.take()
    bench.queues.join("q", "h", Newcomer("d", 1, 32), bench.now_ms)
    bench.run()
    for delivery in held:
        assert bench.settle(delivery, Verb.ACK) is Outcome.DONE
    bench.wait("0s")
    assert bench.offsets() == list(range(9)) and len(bench.rows.entries) == 9
    assert bench.queues.queue("q").groups["h"].owed == 9


@pytest.mark.usefixtures("by_two")
def test_what_comes_meanwhile_comes_behind_what_was_there() -> None:
    bench = Bench(partitions=1)
    bench.publish("k", count=6)
    bench.queues.join("q", "g", Newcomer("c", 1, 32), bench.now_ms)
    bench.publish("k", count=3)
    order: list[int] = []
    while len(order) < 9:
        delivery = bench.one()
        order.append(delivery.offset)
        bench.settle(delivery, Verb.ACK)
        bench.wait("0s")
    assert order == list(range(9)) and not bench.rows.entries


@pytest.mark.usefixtures("by_two")
def test_a_publish_that_is_committed_late_is_offered_once() -> None:
    bench = Bench(partitions=1)
    bench.publish(count=3)
    late = bench.queues.accept("q", Publication(), 10, 0, bench.now_ms)
    bench.publish(count=3)
    bench.queues.join("q", "g", Newcomer("c", 1, 32), bench.now_ms)
    bench.wait("0s")
    bench.queues.commit("q", [(late.ticket, 77)])
    bench.wait("0s")
    assert sorted(bench.offsets()) == [0, 1, 2, 3, 4, 5, 77]
    assert bench.queues.queue("q").groups["g"].owed == 7


@pytest.mark.usefixtures("by_two")
def test_a_group_that_is_removed_while_it_is_new_lets_go_of_everything() -> None:
    bench = Bench(partitions=1)
    bench.publish(count=9)
    bench.queues.open_group("q", "h", bench.now_ms, start=LATEST)
    bench.queues.open_group("q", "g", bench.now_ms)
    bench.run()
    assert bench.queues.remove_group("q", "g")
    bench.wait("0s")
    assert not bench.rows.entries and list(bench.rows.groups) == [(1, "h")]


@pytest.mark.usefixtures("by_two")
def test_a_group_of_the_same_name_may_come_while_the_old_one_goes() -> None:
    bench = Bench(partitions=1)
    bench.join("c")
    bench.publish(count=9)
    for delivery in bench.take()[:4]:
        bench.settle(delivery, Verb.ACK)
    bench.leave("c")
    bench.queues.open_group("q", "h", bench.now_ms)
    bench.wait("0s")
    bench.queues.remove_group("q", "g")
    bench.join("c", epoch=2)
    bench.wait("0s")
    held = bench.take()
    assert [delivery.offset for delivery in held] == [4, 5, 6, 7, 8], "those four were gone"
    for delivery in held:
        assert bench.settle(delivery, Verb.ACK) is Outcome.DONE
    bench.join("d", "h")
    for delivery in bench.take():
        bench.settle(delivery, Verb.ACK)
    assert not bench.rows.entries


@pytest.mark.usefixtures("by_two")
def test_the_last_group_leaves_everything_and_what_ends_meanwhile_ends() -> None:
    bench = Bench(partitions=1, limits={"message_ttl": "10s"})
    bench.join("c")
    bench.publish(count=9)
    bench.leave("c")
    bench.queues.remove_group("q", "g")
    bench.run()
    assert len(bench.rows.entries) == 9
    bench.now_ms += 11_000
    bench.run()
    bench.wait("0s")
    assert not bench.rows.entries and not bench.queues.queue("q").entries


@pytest.mark.usefixtures("by_two")
def test_what_is_being_committed_when_a_group_goes_was_never_its_own() -> None:
    bench = Bench(partitions=1)
    bench.queues.open_group("q", "g", bench.now_ms)
    bench.queues.open_group("q", "h", bench.now_ms)
    bench.publish(count=3)
    late = bench.queues.accept("q", Publication(), 10, 0, bench.now_ms)
    bench.queues.remove_group("q", "g")
    bench.queues.commit("q", [(late.ticket, 77)])
    bench.wait("0s")
    entries = bench.queues.queue("q").entries
    assert [entries.owed(sequence) for sequence in entries] == [1, 1, 1, 1]


@pytest.mark.usefixtures("by_two")
@pytest.mark.parametrize("start", [EARLIEST, LATEST])
def test_what_the_last_group_leaves_is_there_for_the_next_one(start: int) -> None:
    bench = Bench(partitions=1)
    bench.queues.open_group("q", "g", bench.now_ms)
    bench.publish(count=9)
    bench.queues.remove_group("q", "g")
    bench.queues.join("q", "h", Newcomer("c", 1, 32, start=start), bench.now_ms)
    bench.wait("0s")
    assert len(bench.rows.entries) == 9
    for delivery in bench.take():
        bench.settle(delivery, Verb.ACK)
    assert len(bench.rows.entries) == (0 if start == EARLIEST else 9)


@pytest.mark.usefixtures("by_two")
def test_what_is_purged_before_its_turn_is_offered_to_nobody() -> None:
    bench = Bench(partitions=1)
    bench.publish(count=9)
    bench.queues.open_group("q", "h", bench.now_ms)
    bench.queues.run(bench.now_ms)
    queue = bench.queues.queue("q")
    assert bench.queues.purge("q", queue.end(), 7) == 7 and queue.groups["h"].owed == 2
    bench.join("c", "h")
    bench.wait("0s")
    assert bench.offsets() == [7, 8] and queue.groups["h"].owed == 2


@pytest.mark.usefixtures("by_two")
def test_what_ends_before_its_turn_is_a_dead_letter_of_the_new_group() -> None:
    bench = Bench(partitions=1, limits={"message_ttl": "10s", "ttl_action": "dlq"})
    bench.join("c", prefetch=2)
    bench.publish(count=9)
    bench.queues.open_group("q", "h", bench.now_ms)
    bench.queues.run(bench.now_ms)
    bench.now_ms += 11_000
    bench.run()
    assert sorted(bench.dead()) == [("g", "expired")] * 7 + [("h", "expired")] * 9
    queue = bench.queues.queue("q")
    assert queue.groups["h"].owed == 0 and queue.groups["g"].owed == 2 and len(queue.entries) == 2
    bench.wait("0s")
    assert queue.groups["h"].owed == 0


@pytest.mark.usefixtures("by_two")
def test_a_dead_letter_that_comes_back_for_one_group_is_not_for_a_new_one() -> None:
    bench = Bench(partitions=1)
    bench.join("c")
    bench.publish(count=9)
    held = bench.take()
    bench.settle(held[8], Verb.REJECT)
    bench.queues.open_group("q", "h", bench.now_ms)
    bench.queues.run(bench.now_ms)
    (letter,) = bench.queues.queue("dlq/q").entries
    bench.queues.retry_dead_letters("dlq/q", [letter], bench.now_ms)
    queue = bench.queues.queue("q")
    returned = queue.end() - 1
    assert queue.states(returned) == {"g": MessageState.QUEUED}
    (again,) = bench.queues.run(bench.now_ms)
    assert again.offset == 8
    assert bench.settle(again, Verb.ACK) is Outcome.DONE
    assert returned not in queue.entries
    bench.wait("0s")
    assert queue.groups["h"].owed == 8
    bench.join("d", "h")
    assert bench.offsets() == list(range(8))


@pytest.mark.usefixtures("by_two")
def test_a_start_finishes_what_was_begun() -> None:
    bench = Bench(partitions=1)
    bench.join("c")
    bench.publish(count=9)
    held = bench.take()
    bench.queues.join("q", "h", Newcomer("d", 1, 32), bench.now_ms)
    bench.run()
    bench.settle(held[8], Verb.ACK)
    bench.take()
    bench.restart()
    bench.join("d", "h", epoch=2)
    assert bench.offsets() == list(range(9))
    bench.join("c", epoch=2)
    assert bench.offsets() == list(range(8))


@pytest.mark.usefixtures("by_two")
def test_a_start_lets_go_of_what_the_removal_of_a_group_had_left() -> None:
    bench = Bench(partitions=1)
    bench.join("c")
    bench.publish(count=9)
    bench.queues.open_group("q", "h", bench.now_ms)
    bench.wait("0s")
    for delivery in bench.take():
        bench.settle(delivery, Verb.ACK)
    assert len(bench.rows.entries) == 9
    bench.queues.remove_group("q", "h")
    bench.rows.apply(bench.gathered.take(), bench.log_end)
    bench.restart()
    queue = bench.queues.queue("q")
    assert not bench.rows.entries and not bench.rows.marks and not queue.entries and queue.depth() == 0


def test_a_dead_letter_of_a_message_that_its_group_owes_again_makes_no_second_one() -> None:
    bench = Bench(partitions=1)
    bench.join("d", "b")
    bench.join("c", "a")
    bench.publish("k")
    first = next(each for each in bench.take() if each.stamps.group == "a")
    assert bench.settle(first, Verb.REJECT) is Outcome.DONE
    bench.queues.leave("q", "a", "c", bench.now_ms)
    assert bench.queues.remove_group("q", "a")
    bench.run()
    bench.join("c", "a", epoch=2)
    again = bench.one()
    assert again.stamps.message_id == first.stamps.message_id
    letters = list(bench.queues.queue("dlq/q").entries)
    assert bench.queues.retry_dead_letters("dlq/q", letters, bench.now_ms).put_back == 1
    bench.run()
    assert bench.settle(again, Verb.ACK) is Outcome.DONE, "its id means it alone"
    assert bench.take() == [] and bench.queues.queue("q").groups["a"].owed == 0
