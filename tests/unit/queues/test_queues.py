"""What a queue does with messages, consumers and time, case by case."""

from __future__ import annotations

from tests.support.queue_bench import START_MS, Bench

from embermq.model.queue_rows import MessageState
from embermq.queues.consumer import LATEST, Newcomer
from embermq.queues.message_states import TRANSITIONS, VERB_EVENTS, Event
from embermq.queues.names import Verb
from embermq.queues.partitioner import partition_of_key
from embermq.queues.publication import Publication
from embermq.queues.queues import OUTDATED_MAX
from embermq.queues.settling import Outcome, SettleRequest


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
    rows = bench.gathered.take().entries.values()
    shares = [sum(row.partition == each and row.key is None for row in rows) for each in range(10)]
    assert all(800 <= share <= 1_200 for share in shares)
    assert {row.partition for row in rows if row.key} == {9}


def test_ten_partitions_over_three_consumers() -> None:
    bench = Bench()
    group = bench.queues.queue("q").group("g", START_MS)
    bench.join("b")
    assert "".join(group.lanes.owners()) == "b" * 10
    bench.now_ms += 1
    bench.join("c")
    bench.join("a")
    assert "".join(group.lanes.owners()) == "b" * 10, "joins are debounced"
    bench.wait("100ms")
    assert "".join(group.lanes.owners()) == "bbbaaacccc", "by time of joining, then by id"
    bench.leave("a")
    assert "".join(group.lanes.owners()) == "bbbbbccccc"


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
    bench.wait("29s")
    assert not bench.sent
    bench.queues.written((delivery,), bench.now_ms)
    bench.run()
    bench.wait("29s")
    assert bench.settle(delivery, Verb.EXTEND) is Outcome.DONE
    bench.wait("29s")
    assert not bench.sent
    bench.wait("1s")
    assert bench.one().stamps.delivery_count == 2


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


def test_who_goes_gives_back_and_what_reached_its_socket_counts_as_delivered() -> None:
    bench = Bench(ordering="none")
    bench.join("a", prefetch=1)
    bench.publish()
    bench.writes = False
    bench.publish()
    bench.join("b", prefetch=1)
    written, unwritten = bench.take()
    bench.leave("a")
    bench.leave("b")
    bench.writes = True
    bench.join("c")
    suspect = bench.one()
    assert (suspect.offset, suspect.stamps.delivery_count) == (written.offset, 2)
    bench.settle(suspect, Verb.ACK)
    other = bench.one()
    assert (other.offset, other.stamps.delivery_count) == (unwritten.offset, 1)


def test_who_keeps_its_session_has_a_while_to_come_back() -> None:
    bench = Bench(partitions=2)
    bench.join("a")
    bench.join("b")
    bench.wait("100ms")
    bench.publish(count=4)
    taken = bench.take()
    of_a = [each for each in taken if each.client_id == "a"]
    bench.leave("a", may_return=True)
    bench.publish(count=2)
    of_b = [each for each in taken if each.client_id == "b"] + bench.take()
    assert {each.client_id for each in of_b} == {"b"}
    bench.wait("4s")
    bench.join("a", epoch=2, kept_ids=(of_a[0].stamps.message_id,))
    assert not {each.offset for each in of_a} & set(bench.offsets()), "it said that it has one of them"
    assert bench.settle(of_a[0], Verb.ACK, epoch=2) is Outcome.DONE
    assert of_a[1].offset in bench.offsets(), "given back, and delivered again"
    bench.leave("a", may_return=True)
    for each in of_b:
        bench.settle(each, Verb.ACK)
    bench.wait("5s")
    assert {each.client_id for each in bench.take()} == {"b"}


def test_groups_come_with_a_start_and_go_when_they_are_idle() -> None:
    bench = Bench()
    bench.publish()
    bench.join("c", "early")
    bench.join("d", "late", start=LATEST)
    assert [each.client_id for each in bench.take()] == ["c"]
    bench.publish()
    assert {each.client_id for each in bench.take()} == {"c", "d"}
    bench.restart()
    bench.publish()
    assert len(bench.queues.queue("q").entries) == 3
    bench.wait("7d")
    assert not bench.queues.queue("q").groups and not bench.rows.groups
    assert not bench.rows.entries


def test_a_group_may_start_at_a_sequence_or_at_a_record() -> None:
    bench = Bench(partitions=1)
    bench.publish(count=5)
    queue = bench.queues.queue("q")
    bench.join("c", "third", start=3)
    assert [each.stamps.sequence for each in bench.take()] == [3, 4, 5]
    bench.join("d", "at record", start=queue.entries.at_offset(3))
    assert [each.offset for each in bench.take()] == [3, 4]
    assert queue.entries.at_offset(5) == -1
    bench.join("e", "beyond", start=1_000)
    bench.publish()
    assert {each.client_id for each in bench.take()} == {"c", "d", "e"}, "what comes now is for everybody"


def test_who_holds_a_delivery_is_told_apart() -> None:
    bench = Bench(partitions=1)
    bench.join("c")
    bench.publish()
    (sent,) = bench.take()
    assert bench.queues.holds(sent, 1) and not bench.queues.holds(sent, 2)
    assert bench.queues.held_ids("q", "g", "c") == [sent.stamps.message_id]
    bench.settle(sent, Verb.NACK)
    again = bench.one()
    assert bench.queues.holds(again, 1) and not bench.queues.holds(sent, 1), "it has it again, and anew"
    bench.settle(again, Verb.ACK)
    assert not bench.queues.holds(again, 1)
    assert bench.queues.held_ids("q", "g", "c") == bench.queues.held_ids("no", "g", "c") == []


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


def test_strict_is_one_at_a_time() -> None:
    bench = Bench(ordering="strict")
    bench.join("c")
    bench.join("d")
    bench.publish(count=3)
    for offset in range(3):
        delivery = bench.one()
        assert delivery.offset == offset
        bench.settle(delivery, Verb.ACK)


def test_what_never_reached_a_socket_is_not_charged() -> None:
    bench = Bench(retry_policy={"max_retries": 0})
    bench.writes = False
    for client in ("a", "b", "c"):
        bench.join(client)
        if client == "a":
            bench.publish()
        bench.leave(client)
    assert not bench.dead() and len(bench.take()) == 3


def test_alerts_are_of_dead_letters_of_queues_that_name_a_webhook() -> None:
    bench = Bench(dlq_config={"alert_webhook": "https://example.org/hook"})
    bench.join("c")
    bench.publish(count=2)
    first, second = bench.sent
    bench.settle(first, Verb.REJECT)
    (alert,) = bench.queues.take_alerts()
    assert (alert.url, alert.queue) == ("https://example.org/hook", "dlq/q")
    assert (alert.letter.queue, alert.letter.reason) == ("q", "rejected")
    assert alert.letter.message_id == first.stamps.message_id
    assert bench.queues.take_alerts() == []
    bench.configure()
    bench.settle(second, Verb.REJECT)
    assert bench.queues.take_alerts() == []


def test_a_renewed_lease_does_not_keep_others() -> None:
    bench = Bench(ordering="none", retry_policy={"initial_backoff": "0s"})
    bench.join("c", concurrency=2)
    bench.publish()
    bench.wait("1s")
    bench.publish()
    first, _ = bench.take()
    bench.wait("20s")
    bench.settle(first, Verb.EXTEND)
    bench.wait("10s")
    assert bench.offsets() == [1]


def test_a_queue_that_was_only_subscribed_to_is_there_after_a_restart() -> None:
    bench = Bench()
    bench.queues.join("other", "g", Newcomer("c", 1, 1), bench.now_ms)
    bench.run()
    bench.restart()
    assert list(bench.queues.queue("other").groups) == ["g"]
    assert bench.queues.queue("other").generation == 2


def test_of_several_groups_of_a_consumer_the_best_answer_is_told() -> None:
    bench = Bench()
    bench.join("c")
    bench.join("x", "h")
    bench.publish()
    bench.join("c", "h")
    request = SettleRequest(Verb.ACK, ("1-1",))
    assert bench.queues.settle("q", request, "c", 1, START_MS) == [Outcome.DONE]
    assert bench.queues.settle("q", request, "c", 1, START_MS) == [Outcome.ALREADY_SETTLED]


def test_a_group_is_idle_over_restarts() -> None:
    bench = Bench()
    bench.join("c")
    bench.restart()
    assert [row.idle_since_ms for row in bench.rows.groups.values()] == [START_MS]
    for _ in range(7):
        bench.wait("1d")
        bench.restart()
    bench.run()
    assert not bench.rows.groups


def test_times_that_mean_nothing_any_more_are_let_go_of() -> None:
    bench = Bench()
    bench.queues.open_group("q", "idle", START_MS)
    bench.join("c")
    for _ in range(2 * OUTDATED_MAX):
        bench.publish()
        bench.settle(bench.one(), Verb.NACK, 1)
        bench.wait("1ms")
        bench.settle(bench.one(), Verb.ACK)
    assert bench.queues.outdated() <= OUTDATED_MAX + 1


def test_leases_of_another_length_do_not_keep_those_that_begin_now() -> None:
    bench = Bench(
        ordering="none", performance={"delivery_timeout": "1h"}, retry_policy={"nack_delay": "backoff"}
    )
    bench.join("c", concurrency=3)
    bench.publish(count=2)
    long, _ = bench.take()
    bench.configure(ordering="none", performance={"delivery_timeout": "5s"})
    bench.publish()
    bench.take()
    group = bench.queues.queue("q").groups["g"]
    assert group.lease_until_ms(1) == START_MS + 3_600_000
    bench.wait("11s")
    assert bench.offsets() == [2]
    bench.settle(long, Verb.EXTEND)
    assert group.lease_until_ms(1) == bench.now_ms + 5_000
    bench.wait("11s")
    assert 0 in bench.offsets()
    bench.wait("3600s")
    assert 1 in bench.offsets()
