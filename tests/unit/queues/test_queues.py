"""What a queue does with messages, consumers and time, case by case."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json
from tests.support.queue_rows import QueueRows

from embermq.model.queue_rows import MessageState
from embermq.protocol.reason_codes import ReasonCode
from embermq.queues.durations import parse_duration
from embermq.queues.errors import QueueRefusal, SettingsRefused
from embermq.queues.group import LOOKED_AT_MAX
from embermq.queues.message_states import TRANSITIONS, VERB_EVENTS, Event
from embermq.queues.names import Verb
from embermq.queues.partitioner import partition_of_key
from embermq.queues.publication import Publication
from embermq.queues.queue import Delivery, Fate, Newcomer
from embermq.queues.queues import Queues
from embermq.queues.settings import GroupSettings, parse_settings
from embermq.queues.settling import Outcome, SettleRequest

START_MS = 1_000_000
TIMING = GroupSettings(join_debounce_ms=100, disconnect_grace_ms=5_000)


class Bench:
    """Queues, a store for their rows, and a clock. Everything is written to sockets at once unless it is told."""

    def __init__(self, **settings: Any) -> None:
        self.queues = Queues(TIMING)
        self.rows = QueueRows()
        self.now_ms = START_MS
        self.log_end = 0
        self.sent: list[Delivery] = []
        self.writes = True
        self.configure(**settings)

    def configure(self, **settings: Any) -> None:
        self.queues.configure(parse_settings("q", json.encode(settings)))

    def publish(self, key: str | None = None, count: int = 1, **more: Any) -> None:
        for _ in range(count):
            expires_ms = more.pop("expires_ms", 0)
            acceptance = self.queues.accept(
                "q", Publication(key, **more), 10, 0, self.now_ms, expires_ms=expires_ms
            )
            self.rows.apply(self.queues.take_writes(), self.log_end)
            if acceptance.ticket >= 0:
                self.queues.commit("q", acceptance.ticket, self.log_end)
                self.log_end += 1
        self.run()

    def join(self, client: str, group: str = "g", *, epoch: int = 1, prefetch: int = 32, **more: Any) -> None:
        newcomer = Newcomer(client, epoch, prefetch, more.pop("kept_ids", ()))
        self.queues.join("q", group, newcomer, self.now_ms, **more)
        self.run()

    def leave(self, client: str, *, may_return: bool = False) -> None:
        self.queues.leave("q", "g", client, self.now_ms, may_return=may_return)
        self.run()

    def settle(self, delivery: Delivery, verb: Verb, delay_ms: int | None = None, **other: Any) -> Outcome:
        request = SettleRequest(verb, (delivery.stamps.message_id,), delivery.stamps.group, "why", delay_ms)
        client, epoch = other.get("client", delivery.client_id), other.get("epoch", delivery.epoch)
        (outcome,) = self.queues.settle("q", request, client, epoch, self.now_ms)
        self.run()
        return outcome

    def run(self) -> None:
        deliveries = self.queues.run(self.now_ms)
        self.sent += deliveries
        if self.writes:
            for delivery in deliveries:
                self.queues.written(delivery, self.now_ms)
        self.queues.run(self.now_ms)
        self.rows.apply(self.queues.take_writes(), self.log_end)

    def wait(self, duration: str) -> None:
        end_ms = self.now_ms + parse_duration(duration)
        while (due_ms := self.queues.next_due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.run()
        self.now_ms = end_ms

    def wait_for_one(self) -> None:
        """Until something is sent, or a day is over."""
        end_ms = self.now_ms + parse_duration("1d")
        while not self.sent and (due_ms := self.queues.next_due_ms()) is not None and due_ms < end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.run()

    def restart(self) -> None:
        self.queues = Queues(TIMING)
        self.queues.restore(self.rows.load(), self.now_ms)
        self.run()

    def take(self) -> list[Delivery]:
        taken, self.sent = self.sent, []
        return taken

    def one(self) -> Delivery:
        (delivery,) = self.take()
        return delivery

    def offsets(self) -> list[int]:
        return [delivery.offset for delivery in self.take()]

    def dead(self) -> list[tuple[str, str]]:
        """(group, reason) of dead letters, as they are stored."""
        rows = [row for _, row in sorted(self.rows.entries.items()) if row.dead_letter is not None]
        return [(row.dead_letter.group, row.dead_letter.reason) for row in rows if row.dead_letter]


def test_the_table_has_an_answer_for_whatever_a_consumer_says() -> None:
    alive = (MessageState.QUEUED, MessageState.DELIVERED, MessageState.RETRY)
    for state in alive:
        for event in VERB_EVENTS.values():
            assert (state, event) in TRANSITIONS
    assert all(state in alive for state, _ in TRANSITIONS)
    assert (MessageState.DELIVERED, Event.DUE) not in TRANSITIONS


def test_the_states_of_a_message() -> None:
    bench = Bench()
    bench.join("c", prefetch=1)
    bench.join("d", "h", prefetch=1)
    bench.leave("c")
    bench.publish()
    queue = bench.queues.queue("q")
    assert queue.states(1) == {"g": MessageState.QUEUED, "h": MessageState.DELIVERED}
    bench.settle(bench.one(), Verb.NACK, 5_000)
    assert queue.states(1) == {"g": MessageState.QUEUED, "h": MessageState.RETRY}
    bench.wait("5s")
    bench.settle(bench.one(), Verb.ACK)
    assert queue.states(1) == {"g": MessageState.QUEUED}
    assert bench.rows.marks[queue.generation, "h", 1].state is MessageState.ACKED
    bench.join("c", prefetch=1)
    bench.settle(bench.one(), Verb.ACK)
    assert not queue.entries and not bench.rows.entries and not bench.rows.marks


def test_what_a_delivery_carries() -> None:
    bench = Bench(partitions=1)
    bench.join("c")
    bench.publish("k")
    first = bench.one()
    assert bench.settle(first, Verb.NACK) is Outcome.DONE
    second = bench.one()
    assert first.stamps.message_id == second.stamps.message_id == "1-1"
    assert (first.stamps.delivery_count, second.stamps.delivery_count) == (1, 2)
    assert first.stamps.first_delivered_ms == second.stamps.first_delivered_ms == START_MS
    assert (second.stamps.group, second.stamps.partition, second.stamps.sequence) == ("g", 0, 1)


def test_message_ids_are_not_given_again_after_a_restart() -> None:
    bench = Bench()
    bench.join("c")
    bench.publish()
    first = bench.one()
    bench.settle(first, Verb.ACK)
    bench.restart()
    assert bench.settle(first, Verb.ACK) is Outcome.ALREADY_SETTLED
    bench.join("c", epoch=2)
    bench.publish()
    assert bench.one().stamps.sequence > first.stamps.sequence


def test_messages_without_a_key_are_spread() -> None:
    bench = Bench(limits={"max_queue_depth": 20_000})
    for turn in range(10_000):
        bench.queues.accept("q", Publication(), 10, 0, START_MS)
        if turn % 3 == 0:
            bench.queues.accept("q", Publication("key"), 10, 0, START_MS)
    rows = bench.queues.take_writes().entries.values()
    shares = [sum(row.partition == each and row.key is None for row in rows) for each in range(10)]
    assert all(800 <= share <= 1_200 for share in shares)
    assert {row.partition for row in rows if row.key} == {9}


@pytest.mark.promise("queues-15")
def test_ten_partitions_over_three_consumers() -> None:
    bench = Bench()
    group = bench.queues.queue("q").group("g", START_MS)
    bench.join("b")
    assert "".join(group.owners()) == "b" * 10
    bench.now_ms += 1
    bench.join("c")
    bench.join("a")
    assert "".join(group.owners()) == "b" * 10, "joins are debounced"
    bench.wait("100ms")
    assert "".join(group.owners()) == "bbbaaacccc", "by time of joining, then by id"
    bench.leave("a")
    assert "".join(group.owners()) == "bbbbbccccc"


def test_a_new_owner_waits_for_the_keys_that_the_old_one_holds() -> None:
    bench = Bench(partitions=2)
    keys = [next(key for key in map(str, range(99)) if partition_of_key(key, 2) == each) for each in (0, 1)]
    bench.join("a")
    bench.publish(keys[1], count=2)
    held = bench.one()
    bench.now_ms += 1
    bench.join("b")
    bench.wait("100ms")
    bench.publish(keys[1])
    bench.publish(keys[0])
    assert [(each.client_id, each.stamps.partition) for each in bench.take()] == [("a", 0)]
    bench.settle(held, Verb.ACK)
    following = bench.one()
    assert (following.client_id, following.offset) == ("b", 1)


@pytest.mark.promise("queues-15")
def test_without_order_the_least_loaded_gets_the_next() -> None:
    bench = Bench(ordering="none")
    for client, prefetch in (("a", 5), ("b", 2), ("c", 32)):
        bench.join(client, prefetch=prefetch)
    bench.publish(count=9)
    taken = bench.take()
    assert [each.client_id for each in taken] == ["a", "b", "c", "a", "b", "c", "a", "c", "a"]
    bench.settle(taken[1], Verb.ACK)
    bench.publish()
    assert bench.one().client_id == "b"


def test_a_batch_goes_to_one_consumer_before_the_next() -> None:
    bench = Bench(ordering="none", performance={"batch_size": 3})
    bench.publish(count=7)
    bench.join("a", prefetch=1)
    assert bench.offsets() == [0]
    bench.join("b", prefetch=32)
    assert len(bench.take()) == 6


def test_the_only_consumer_gets_back_what_it_nacks_and_what_it_lets_lie() -> None:
    bench = Bench()
    bench.join("c")
    bench.publish("k")
    waits = []
    for _ in range(4):
        delivery = bench.one()
        assert bench.settle(delivery, Verb.NACK) is Outcome.DONE
        before_ms = bench.now_ms
        while not bench.sent:
            bench.wait("1s")
        waits.append((bench.now_ms - before_ms) // 1_000)
    assert waits == [0, 5, 10, 20]
    bench.take()
    bench.wait("30s")
    assert not bench.sent, "the lease is over, the wait is not"
    bench.wait("40s")
    assert bench.one().client_id == "c"


def test_the_lease_begins_at_the_socket_and_can_be_renewed() -> None:
    bench = Bench(retry_policy={"initial_backoff": "0s"})
    bench.writes = False
    bench.join("c")
    bench.publish()
    delivery = bench.one()
    bench.wait("10m")
    assert not bench.sent
    bench.queues.written(delivery, bench.now_ms)
    bench.run()
    bench.wait("29s")
    assert bench.settle(delivery, Verb.EXTEND) is Outcome.DONE
    bench.wait("29s")
    assert not bench.sent
    bench.wait("1s")
    assert bench.one().stamps.delivery_count == 2


@pytest.mark.promise("queues-24")
def test_waits_go_on_after_a_restart() -> None:
    bench = Bench(retry_policy={"nack_delay": "backoff"})
    bench.join("c")
    bench.publish("k")
    for wait in ("5s", "10s", "20s"):
        bench.settle(bench.one(), Verb.NACK)
        bench.wait("1s")
        bench.restart()
        bench.join("c", epoch=bench.now_ms)
        bench.wait(f"{int(wait[:-1]) - 2}s")
        assert not bench.sent
        bench.wait("1s")
        assert bench.sent, wait
    delivery = bench.one()
    assert delivery.stamps.delivery_count == 4
    assert delivery.stamps.first_delivered_ms == START_MS


@pytest.mark.promise("queues-25")
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


@pytest.mark.promise("queues-25")
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


def test_late_words_of_the_last_holder() -> None:
    bench = Bench(retry_policy={"nack_delay": "backoff"})
    bench.join("c")
    bench.publish()
    delivery = bench.one()
    bench.wait("31s")
    assert bench.settle(delivery, Verb.NACK) is Outcome.LATE
    assert bench.settle(delivery, Verb.REJECT) is Outcome.LATE
    assert bench.settle(delivery, Verb.EXTEND) is Outcome.LATE
    assert bench.settle(delivery, Verb.ACK, client="d") is Outcome.NOT_YOURS
    assert bench.settle(delivery, Verb.ACK) is Outcome.DONE
    assert bench.settle(delivery, Verb.ACK) is Outcome.ALREADY_SETTLED
    assert not bench.rows.entries and not bench.rows.marks


def test_ids_that_nobody_was_given_are_unknown() -> None:
    bench = Bench()
    bench.publish()
    bench.join("c", prefetch=1)
    bench.publish()
    for message_id in ("", "x", "1-0", "1-2", "1-3", "2-1", "1--1"):
        request = SettleRequest(Verb.ACK, (message_id,), "g")
        assert bench.queues.settle("q", request, "c", 1, START_MS) == [Outcome.UNKNOWN]
    assert bench.queues.settle("none", SettleRequest(Verb.ACK, ("1-1",)), "c", 1, 0) == [Outcome.UNKNOWN]


def test_an_ack_without_a_group_is_for_the_one_that_the_consumer_is_in() -> None:
    bench = Bench()
    bench.join("c")
    bench.join("d", "h")
    bench.publish()
    request = SettleRequest(Verb.ACK, ("1-1",))
    assert bench.queues.settle("q", request, "x", 1, START_MS) == [Outcome.NOT_YOURS]
    assert bench.queues.settle("q", request, "c", 1, START_MS) == [Outcome.DONE]
    assert bench.queues.settle("q", request, "c", 1, START_MS) == [Outcome.ALREADY_SETTLED]
    assert bench.queues.queue("q").states(1) == {"h": MessageState.DELIVERED}


def test_who_goes_gives_back_and_is_charged_for_what_reached_its_socket() -> None:
    bench = Bench(ordering="none")
    bench.join("a", prefetch=1)
    bench.publish()
    bench.writes = False
    bench.publish()
    bench.join("b", prefetch=1)
    written, unwritten = bench.take()
    bench.leave("a")
    bench.leave("b")
    bench.join("c")
    counts = {each.offset: each.stamps.delivery_count for each in bench.take()}
    assert counts == {written.offset: 2, unwritten.offset: 1}


def test_who_keeps_its_session_has_a_while_to_come_back() -> None:
    bench = Bench(partitions=2)
    bench.join("a")
    bench.join("b")
    bench.wait("100ms")
    bench.publish(count=4)
    of_a = [each for each in bench.take() if each.client_id == "a"]
    bench.leave("a", may_return=True)
    bench.publish(count=2)
    assert {each.client_id for each in bench.take()} == {"b"}
    bench.wait("4s")
    bench.join("a", epoch=2, kept_ids=(of_a[0].stamps.message_id,))
    again = bench.take()
    assert of_a[1].offset in {each.offset for each in again}, "given back, and delivered again"
    assert of_a[0].offset not in {each.offset for each in again}, "it said that it has it"
    assert bench.settle(of_a[0], Verb.ACK, epoch=2) is Outcome.DONE
    bench.leave("a", may_return=True)
    bench.wait("5s")
    assert {each.client_id for each in bench.take()} == {"b"}


def test_groups_come_with_a_start_and_go_when_they_are_idle() -> None:
    bench = Bench()
    bench.publish()
    bench.join("c", "early")
    bench.join("d", "late", is_latest=True)
    assert [each.client_id for each in bench.take()] == ["c"]
    bench.publish()
    assert {each.client_id for each in bench.take()} == {"c", "d"}
    bench.restart()
    bench.publish()
    assert len(bench.queues.queue("q").entries) == 3
    bench.wait("7d")
    assert not bench.queues.queue("q").groups and not bench.rows.groups
    assert not bench.rows.entries


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
    writes = bench.queues.take_writes()
    bench.queues.withdraw("q", acceptance.ticket)
    bench.queues.give_back(writes)
    bench.run()
    assert not bench.rows.entries and not bench.rows.dedup_ids
    bench.publish(dedup_id="d")
    assert len(bench.take()) == 1


def test_a_delayed_message_takes_its_place_when_it_is_due() -> None:
    bench = Bench()
    bench.join("c", prefetch=32)
    bench.publish("k", visible_ms=START_MS + 10_000)
    bench.publish("k")
    assert bench.offsets() == [1]
    bench.restart()
    bench.join("c", epoch=2)
    assert bench.offsets() == [1]
    bench.wait("9s")
    assert not bench.sent
    bench.wait("1s")
    assert not bench.sent, "its key is not free"
    request = SettleRequest(Verb.ACK, ("1-2",), "g")
    assert bench.queues.settle("q", request, "c", 2, bench.now_ms) == [Outcome.DONE]
    bench.run()
    assert bench.offsets() == [0]
    assert not bench.rows.delayed


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
    assert bench.queues.retry_dead_letters("dlq/q", list(dead.entries), bench.now_ms) == 1
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


@pytest.mark.promise("queues-30")
def test_a_failing_message_blocks_its_key_alone() -> None:
    bench = Bench(partitions=1, retry_policy={"nack_delay": "backoff"})
    bench.join("c")
    for key in "abab":
        bench.publish(key)
    a, b = bench.take()
    bench.settle(a, Verb.NACK)
    bench.settle(b, Verb.ACK)
    assert bench.offsets() == [3]
    bench.wait("5s")
    again = bench.one()
    assert again.offset == 0
    bench.settle(again, Verb.REJECT)
    assert bench.offsets() == [2]


@pytest.mark.promise("queues-30")
def test_strict_is_one_at_a_time() -> None:
    bench = Bench(ordering="strict")
    bench.join("c")
    bench.join("d")
    bench.publish(count=3)
    for offset in range(3):
        delivery = bench.one()
        assert delivery.offset == offset
        bench.settle(delivery, Verb.ACK)


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
        bench.queues.commit("q", ticket, 0)
    bench.publish("other")
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
    bench.join("d", "h", is_latest=True)
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


def test_what_never_reached_a_socket_is_not_charged() -> None:
    bench = Bench(retry_policy={"max_retries": 0})
    bench.writes = False
    for client in ("a", "b", "c"):
        bench.join(client)
        if client == "a":
            bench.publish()
        bench.leave(client)
    assert not bench.dead() and len(bench.take()) == 3


def test_a_renewed_lease_does_not_keep_others() -> None:
    bench = Bench(ordering="none", retry_policy={"initial_backoff": "0s"})
    bench.join("c")
    bench.publish()
    bench.wait("1s")
    bench.publish()
    first, _ = bench.take()
    bench.wait("20s")
    bench.settle(first, Verb.EXTEND)
    bench.wait("10s")
    assert bench.offsets() == [1]


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


def test_a_queue_that_was_only_subscribed_to_is_there_after_a_restart() -> None:
    bench = Bench()
    bench.queues.join("other", "g", Newcomer("c", 1, 1), bench.now_ms)
    bench.run()
    bench.restart()
    assert list(bench.queues.queue("other").groups) == ["g"]
    assert bench.queues.queue("other").generation == 2
