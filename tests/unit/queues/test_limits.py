"""What is refused, dropped, ended and buried, case by case."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.queue_bench import START_MS, Bench

from embermq.model.queue_rows import MessageState
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.queues import dead_lettering
from embermq.queues import queue as queue_module
from embermq.queues.consumer import LATEST, Newcomer
from embermq.queues.deadlines import GONE_MAX, Deadlines
from embermq.queues.entries import Entries
from embermq.queues.errors import QueueRefusal, SettingsRefused
from embermq.queues.lanes import LOOKED_AT_MAX
from embermq.queues.names import Verb
from embermq.queues.publication import Publication
from embermq.queues.queue import Fate
from embermq.queues.scans import ADVANCED_MAX
from embermq.queues.settling import Outcome, SettleRequest


@pytest.mark.parametrize("silent", [True, False])
def test_after_eleven_deliveries_it_is_a_dead_letter(silent: bool) -> None:
    bench = Bench(retry_policy={"total_timeout": "24h"})
    bench.join("c")
    bench.publish()
    count = 0
    while bench.sent:
        delivery = bench.one()
        count += 1
        assert delivery.stamps.delivery_count == count
        if not silent:
            bench.settle(delivery, Verb.NACK)
        bench.wait_for_one()
    assert count == 11
    assert bench.dead() == [("g", "max_retries")]
    assert not bench.queues.queue("q").entries


def test_three_hours_after_the_first_delivery_it_is_a_dead_letter() -> None:
    bench = Bench(retry_policy={"max_retries": 1_000})
    bench.publish()
    bench.wait("5h")
    bench.join("c")
    bench.settle(bench.one(), Verb.NACK, 2 * 3_600_000)
    bench.wait("2h")
    bench.settle(bench.one(), Verb.NACK, 2 * 3_600_000)
    bench.wait("59m")
    assert not bench.dead()
    bench.wait("1m")
    assert bench.dead() == [("g", "timeout")]


def test_a_repeat_is_known_within_its_window_and_after_a_restart() -> None:
    bench = Bench()
    bench.publish(dedup_id="d")
    bench.publish(dedup_id="d")
    bench.wait("119s")
    bench.restart()
    bench.publish(dedup_id="d")
    assert len(bench.rows.entries) == 1
    bench.wait("1s")
    bench.publish(dedup_id="d")
    assert len(bench.rows.entries) == 2


def test_a_withdrawn_message_leaves_nothing() -> None:
    bench = Bench()
    bench.join("c")
    acceptance = bench.queues.accept("q", Publication(dedup_id="d"), 10, 0, START_MS)
    writes = bench.gathered.take()
    bench.queues.withdraw("q", acceptance.ticket)
    bench.gathered.give_back(writes)
    bench.run()
    assert not bench.rows.entries and not bench.rows.dedup_ids
    bench.publish(dedup_id="d")
    assert len(bench.take()) == 1


def test_a_full_queue_refuses() -> None:
    bench = Bench(limits={"max_queue_depth": 3, "max_message_size": 10})
    bench.publish(count=2)
    bench.publish(visible_ms=START_MS + 1)
    with pytest.raises(QueueRefusal, match="queue q holds 3 messages, the limit is 3") as refused:
        bench.publish()
    assert refused.value.reason_code is ReasonCode.QUOTA_EXCEEDED
    with pytest.raises(QueueRefusal, match="payload of 11 bytes, the limit is 10"):
        bench.queues.accept("q", Publication(), 11, 0, START_MS)
    bench.join("c")
    bench.settle(bench.take()[0], Verb.ACK)
    bench.publish()


def test_a_full_queue_drops_what_is_new_or_what_is_old() -> None:
    bench = Bench(limits={"max_queue_depth": 3, "overflow": "drop-new"})
    bench.publish(count=3)
    assert bench.queues.accept("q", Publication(), 1, 0, START_MS).fate is Fate.DROPPED
    assert bench.queues.queue("q").dropped["overflow"] == 1
    bench.configure(limits={"max_queue_depth": 3, "overflow": "drop-head"})
    bench.join("c", prefetch=1)
    bench.join("d", "h", prefetch=1)
    bench.leave("d")
    bench.publish(count=2)
    assert bench.offsets() == [0, 0]
    assert bench.dead() == [("g", "overflow"), ("h", "overflow")] * 2
    assert sorted(row.offset for row in bench.rows.entries.values() if not row.dead_letter) == [0, 3, 4]


@pytest.mark.parametrize("action", ["drop", "dlq"])
def test_what_is_not_taken_in_time_ends(action: str) -> None:
    bench = Bench(limits={"message_ttl": "60s", "ttl_action": action})
    bench.join("c", prefetch=1)
    bench.publish("k", count=3)
    held = bench.one()
    bench.publish(expires_ms=START_MS + 10_000)
    bench.wait("10s")
    ended = [("g", "expired")] if action == "dlq" else []
    assert bench.dead() == ended
    bench.settle(held, Verb.EXTEND)
    bench.wait("29s")
    bench.settle(held, Verb.EXTEND)
    bench.wait("21s")
    assert bench.dead() == ended * 3
    assert set(bench.queues.queue("q").entries) == {1}, "who holds it may still settle it"
    bench.settle(held, Verb.NACK)
    assert bench.dead() == ended * 4
    assert not bench.queues.queue("q").entries
    assert bench.queues.queue("q").dropped["expired"] == (4 if action == "drop" else 0)


def test_a_rejected_message_moves_and_comes_back_for_its_group_alone() -> None:
    bench = Bench()
    bench.join("c")
    bench.join("d", "h")
    bench.publish("k")
    first, other = bench.take()
    bench.settle(other, Verb.ACK)
    assert bench.settle(first, Verb.REJECT) is Outcome.DONE
    assert bench.dead() == [("g", "rejected")]
    bench.restart()
    dead = bench.queues.queue("dlq/q")
    (row,) = bench.rows.entries.values()
    letter = row.dead_letter
    assert letter is not None
    assert (letter.queue, letter.message_id, letter.attempts.last_error) == (
        "q",
        first.stamps.message_id,
        "why",
    )
    assert bench.queues.retry_dead_letters("dlq/q", list(dead.entries), bench.now_ms).put_back == 1
    bench.join("c", epoch=2)
    bench.join("d", "h", epoch=2)
    again = bench.one()
    assert (again.client_id, again.offset) == ("c", first.offset)
    assert (again.stamps.message_id, again.stamps.delivery_count) == (first.stamps.message_id, 1)
    assert bench.settle(again, Verb.ACK) is Outcome.DONE
    assert not bench.rows.entries


def test_dead_letters_are_read_as_a_queue_and_never_buried_again() -> None:
    bench = Bench(retry_policy={"max_retries": 0})
    bench.join("c")
    bench.publish()
    bench.settle(bench.one(), Verb.NACK)
    bench.queues.join("dlq/q", "g", Newcomer("c", 1, 1), bench.now_ms)
    for _ in range(20):
        bench.wait_for_one()
        delivery = bench.one()
        assert delivery.stamps.dead_letter is not None
        request = SettleRequest(Verb.NACK, (delivery.stamps.message_id,), "g")
        assert bench.queues.settle("dlq/q", request, "c", 1, bench.now_ms) == [Outcome.DONE]
        bench.wait_for_one()
    delivery = bench.one()
    request = SettleRequest(Verb.REJECT, (delivery.stamps.message_id,), "g")
    assert bench.queues.settle("dlq/q", request, "c", 1, bench.now_ms) == [Outcome.DONE]
    bench.run()
    assert not bench.rows.entries


def test_without_dead_letters_what_fails_is_dropped_and_counted() -> None:
    bench = Bench(dlq_config={"enabled": False})
    bench.join("c")
    bench.publish()
    bench.settle(bench.one(), Verb.REJECT)
    assert not bench.rows.entries
    assert bench.queues.queue("q").dropped["rejected"] == 1


def test_partitions_change_while_the_queue_is_empty() -> None:
    bench = Bench(partitions=2)
    bench.join("c")
    bench.publish()
    with pytest.raises(SettingsRefused, match="partitions: 2 cannot become 3"):
        bench.configure(partitions=3)
    bench.settle(bench.one(), Verb.ACK)
    bench.configure(partitions=3, ordering="none")
    bench.publish(count=3)
    assert len(bench.take()) == 3
    bench.restart()
    assert bench.queues.queue("q").settings.partitions == 3


def test_a_long_line_behind_a_key_is_looked_at_in_pieces() -> None:
    bench = Bench(partitions=1, limits={"max_queue_depth": 100_000})
    for _ in range(2 * LOOKED_AT_MAX + 10):
        ticket = bench.queues.accept("q", Publication("k"), 1, 0, START_MS).ticket
        bench.queues.commit("q", [(ticket, 0)])
    bench.publish("other")
    bench.queues.open_group("q", "g", START_MS)
    bench.wait("0s")
    bench.queues.join("q", "g", Newcomer("c", 1, 32), START_MS)
    calls = 0
    while bench.queues.next_due_ms() == 0:
        bench.sent += bench.queues.run(START_MS)
        calls += 1
    assert calls == 3
    assert [each.stamps.sequence for each in bench.sent] == [1, 2 * LOOKED_AT_MAX + 11]


def test_what_has_ended_for_one_group_stays_ended_after_a_restart() -> None:
    bench = Bench(limits={"message_ttl": "60s"})
    bench.join("c")
    bench.join("d", "h", start=LATEST)
    bench.queues.leave("q", "h", "d", bench.now_ms)
    bench.publish()
    held = bench.one()
    bench.wait("29s")
    bench.settle(held, Verb.EXTEND)
    bench.wait("29s")
    bench.settle(held, Verb.EXTEND)
    bench.wait("3s")
    queue = bench.queues.queue("q")
    assert queue.states(1) == {"g": MessageState.DELIVERED}
    assert bench.rows.marks[queue.generation, "h", 1].state is MessageState.DLQ


def test_a_message_that_ends_in_line_lets_nobody_pass() -> None:
    bench = Bench()
    bench.join("c")
    bench.publish("k")
    bench.publish("k", expires_ms=START_MS + 10_000)
    bench.publish("k")
    held = bench.one()
    bench.wait("11s")
    assert not bench.sent
    bench.settle(held, Verb.ACK)
    assert bench.offsets() == [2]


def test_a_dead_letter_of_no_group_comes_back_for_all() -> None:
    bench = Bench(limits={"max_queue_depth": 1, "overflow": "drop-head"})
    bench.publish(count=2)
    assert bench.dead() == [("", "overflow")]
    bench.queues.retry_dead_letters("dlq/q", list(bench.queues.queue("dlq/q").entries), bench.now_ms)
    bench.join("c")
    bench.join("d", "h")
    again = [each for each in bench.take() if each.offset == 0]
    assert [each.stamps.message_id for each in again] == ["1-1", "1-1"]
    assert [bench.settle(each, Verb.ACK) for each in again] == [Outcome.DONE] * 2
    assert [row.offset for row in bench.rows.entries.values()] == [1]


def test_room_is_made_where_it_is_wanted() -> None:
    bench = Bench(ordering="none", limits={"max_queue_depth": 3, "overflow": "drop-head"})
    bench.join("c")
    bench.publish()
    bench.settle(bench.one(), Verb.ACK)
    bench.join("d", "h")
    bench.publish(count=3)
    for delivery in bench.take():
        if delivery.client_id == "d" and delivery.offset > 1:
            bench.settle(delivery, Verb.ACK)
        elif delivery.client_id == "d" or delivery.offset > 1:
            bench.settle(delivery, Verb.NACK, 60_000)
        else:
            bench.settle(delivery, Verb.ACK)
    bench.publish(count=2)
    assert bench.dead() == [("g", "overflow")]
    assert bench.queues.queue("q").states(2) == {"h": MessageState.RETRY}


def test_partitions_do_not_change_while_messages_are_there_that_nobody_owes() -> None:
    bench = Bench(partitions=10)
    bench.publish(count=10)
    bench.join("c", start=LATEST)
    assert bench.queues.queue("q").depth() == 0
    with pytest.raises(SettingsRefused, match="while the queue holds 10"):
        bench.configure(partitions=1)
    bench.join("d", "h")
    assert len(bench.take()) == 10


def test_what_was_held_when_room_was_made_is_dropped_when_nobody_holds_it_any_more() -> None:
    bench = Bench(limits={"max_queue_depth": 3, "overflow": "drop-head"})
    bench.join("c")
    bench.publish(count=3)
    with pytest.raises(QueueRefusal):
        bench.publish()
    bench.leave("c")
    bench.publish()
    assert bench.dead() == [("g", "overflow")]
    assert list(bench.queues.queue("q").entries) == [2, 3, 4]


def test_very_many_that_are_over_at_once_end_in_pieces() -> None:
    count = 2 * ADVANCED_MAX + 10
    bench = Bench(limits={"message_ttl": "60s", "max_queue_depth": 2 * count})
    for number in range(count):
        ticket = bench.queues.accept(
            "q", Publication(), 1, 0, START_MS, expires_ms=START_MS + 50_000 * (number % 2)
        ).ticket
        bench.queues.commit("q", [(ticket, 0)])
    bench.now_ms += 60_000
    queue, calls = bench.queues.queue("q"), 0
    while queue.entries:
        before = len(queue.entries)
        bench.queues.run(bench.now_ms)
        assert before - len(queue.entries) <= ADVANCED_MAX
        due_ms = bench.queues.next_due_ms()
        assert not queue.entries or (due_ms is not None and due_ms <= bench.now_ms), "it goes on at once"
        calls += 1
    assert calls == 3


def test_very_many_that_are_delayed_to_one_time_come_in_pieces() -> None:
    bench = Bench()
    for _ in range(ADVANCED_MAX + 1):
        ticket = bench.queues.accept("q", Publication(visible_ms=START_MS + 1), 1, 0, START_MS).ticket
        bench.queues.commit("q", [(ticket, 0)])
    bench.run()
    bench.now_ms += 1
    queue = bench.queues.queue("q")
    bench.queues.run(bench.now_ms)
    assert len(queue.entries) == ADVANCED_MAX
    bench.queues.run(bench.now_ms)
    assert len(queue.entries) == ADVANCED_MAX + 1 and not queue.delayed


def test_messages_that_are_settled_long_before_their_end_are_not_remembered_until_then() -> None:
    entries = Entries()
    deadlines = Deadlines(entries, {})
    entries.put(1, 0, 0, 1_000_000, None)
    deadlines.add(1, 1_000_000)
    for sequence in range(2, 10_000):
        entries.put(sequence, 0, 0, 500_000, None)
        deadlines.add(sequence, 500_000)
        entries.remove(sequence)
    assert len(deadlines) <= GONE_MAX + 3


def over(depth: int, **settings: Any) -> dict[str, Any]:
    return {"limits": {"max_queue_depth": depth, "overflow": "drop-head"}, **settings}


def test_a_lower_depth_is_reached_at_once() -> None:
    bench = Bench(**over(100))
    bench.join("c", prefetch=2)
    bench.publish(count=10)
    assert bench.offsets() == [0, 1]
    bench.configure(**over(4))
    bench.run()
    assert bench.dead() == [("g", "overflow")] * 6
    assert list(bench.queues.queue("q").entries) == [1, 2, 9, 10], "what is held stays, else the oldest go"
    assert bench.queues.next_due_ms() != 0
    bench.publish()
    assert bench.queues.queue("q").depth() == 4
    bench.restart()
    assert bench.queues.queue("q").depth() == 4


def test_it_is_reached_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "ADVANCED_MAX", 3)
    bench = Bench(**over(100))
    bench.publish(count=10)
    bench.configure(**over(1))
    depths = []
    while bench.queues.next_due_ms() == 0:
        bench.queues.run(bench.now_ms)
        depths.append(bench.queues.queue("q").depth())
    assert depths == [7, 4, 1, 1]


def test_it_goes_on_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "ADVANCED_MAX", 3)
    bench = Bench(**over(100))
    bench.join("c", prefetch=2)
    bench.publish(count=20)
    bench.configure(**over(4))
    bench.queues.run(bench.now_ms)
    bench.rows.apply(bench.gathered.take(), bench.log_end)
    assert len(bench.dead()) == 3
    bench.restart()
    for _ in range(10):
        bench.run()
    assert bench.queues.queue("q").depth() == 4 and len(bench.dead()) == 16
    assert bench.queues.next_due_ms() != 0


def test_a_publish_begins_anew_with_what_was_held_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would stay above its depth for ever: each message that comes takes the place of one."""
    monkeypatch.setattr(queue_module, "ADVANCED_MAX", 3)
    bench = Bench(**over(100))
    bench.join("c", prefetch=9)
    bench.publish(count=10)
    bench.configure(**over(4))
    bench.run()
    assert bench.queues.queue("q").depth() == 9 and len(bench.take()) == 9
    bench.leave("c")
    bench.run()
    assert bench.queues.queue("q").depth() == 9
    bench.publish()
    for _ in range(4):
        bench.run()
    assert bench.queues.queue("q").depth() == 4
    assert bench.dead() == [("g", "overflow")] * 7
    assert bench.queues.next_due_ms() != 0


def test_where_nothing_can_go_it_is_not_waited_for() -> None:
    bench = Bench(**over(100))
    bench.join("c")
    bench.publish(count=5)
    bench.publish(visible_ms=START_MS + 60_000)
    held = bench.take()
    bench.configure(**over(1))
    for _ in range(5):
        bench.run()
    assert not bench.dead() and bench.queues.next_due_ms() != 0
    assert [bench.settle(each, Verb.ACK) for each in held] == [Outcome.DONE] * 5


def test_many_that_are_held_do_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_lettering, "LOOKED_AT_MAX", 2)
    monkeypatch.setattr(queue_module, "LOOKED_AT_MAX", 2)
    bench = Bench(**over(100))
    bench.join("c", prefetch=7)
    bench.publish(count=10)
    bench.configure(**over(8))
    for _ in range(10):
        bench.run()
    assert bench.dead() == [("g", "overflow")] * 2
    assert bench.queues.next_due_ms() != 0


@pytest.mark.parametrize("overflow", ["reject", "drop-new"])
def test_where_the_head_is_not_dropped_everything_stays(overflow: str) -> None:
    bench = Bench()
    bench.publish(count=5)
    bench.configure(limits={"max_queue_depth": 1, "overflow": overflow})
    bench.run()
    assert bench.queues.queue("q").depth() == 5 and not bench.dead()


def test_dead_letters_stay_whatever_depth_their_queue_is_given() -> None:
    bench = Bench()
    bench.join("c")
    bench.publish(count=3)
    for delivery in bench.take():
        bench.settle(delivery, Verb.REJECT)
    bench.name = "dlq/q"
    bench.configure(**over(1))
    bench.run()
    assert len(bench.dead()) == 3


def test_a_higher_depth_or_another_overflow_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "ADVANCED_MAX", 2)
    bench = Bench(**over(100))
    bench.publish(count=20)
    bench.configure(**over(1))
    bench.run()
    depth = bench.queues.queue("q").depth()
    assert 1 < depth < 20
    bench.configure(limits={"max_queue_depth": 1})
    for _ in range(3):
        bench.run()
    assert bench.queues.queue("q").depth() == depth and bench.queues.next_due_ms() != 0
