"""What operators are told of queues."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from tests.support.queue_bench import START_MS, Bench

from embermq.queues.explaining import explain
from embermq.queues.inspection import (
    LetterFilter,
    consumers_of,
    groups_of,
    letter_at,
    letters_after,
    message_at,
    message_of,
    messages_after,
    stats_of,
)
from embermq.queues.latency import MARKS_MAX, WAITING_MAX, Arrivals, LatencyWindow
from embermq.queues.names import Verb


def at(after_ms: int) -> datetime:
    return datetime.fromtimestamp((START_MS + after_ms) / 1_000, UTC)


def codes(bench: Bench) -> list[tuple[str, str]]:
    return [(reason.group, reason.code) for reason in explain(bench.queues.queue("q"), bench.now_ms)]


def words(bench: Bench, code: str) -> str:
    (text,) = [r.text for r in explain(bench.queues.queue("q"), bench.now_ms) if r.code == code]
    return text


def test_figures_of_a_queue() -> None:
    bench = Bench(partitions=2)
    bench.join("c", prefetch=2)
    bench.publish("k", count=3)
    bench.publish(visible_ms=START_MS + 60_000)
    bench.wait("2s")
    bench.settle(bench.one(), Verb.NACK, 9_000)
    stats = stats_of(bench.queues.queue("q"), bench.now_ms)
    assert (stats.name, stats.kind, stats.depth, stats.messages, stats.delayed) == ("q", "ordinary", 4, 3, 1)
    assert (stats.in_flight, stats.in_backoff, stats.blocked_keys) == (0, 1, 1)
    assert (stats.groups, stats.consumers, stats.oldest_age_s) == (1, 1, 2.0)
    assert (stats.enqueued, stats.delivered, stats.nacked, stats.acked) == (4, 1, 1, 0)
    assert stats.delivery_latency_s == {"0.5": 0.0, "0.95": 0.0, "0.99": 0.0}
    (group,) = groups_of(bench.queues.queue("q"), "", 9)
    assert (group.name, group.lag, group.next_retry) == ("g", 3, at(11_000))


def test_a_message_that_came_back_for_one_group_is_told_for_each() -> None:
    bench = Bench(partitions=1)
    bench.queues.open_group("q", "h", bench.now_ms)
    bench.join("c")
    bench.publish()
    delivery = bench.one()
    bench.settle(delivery, Verb.REJECT)
    bench.queues.retry_dead_letters("dlq/q", [1], bench.now_ms)
    bench.run()
    found = message_of(bench.queues.queue("q"), delivery.stamps.message_id)
    assert found is not None and found.sequence == delivery.stamps.sequence
    assert [(each.group, each.state) for each in found.states] == [("g", "DELIVERED"), ("h", "QUEUED")]


def test_dead_letters_know_after_a_start_when_they_came() -> None:
    bench = Bench()
    bench.join("c")
    bench.publish()
    bench.wait("2s")
    bench.settle(bench.one(), Verb.REJECT)
    bench.wait("3s")
    bench.restart()
    dead = bench.queues.queue("dlq/q")
    dead.configure(replace(dead.settings, limits=replace(dead.settings.limits, message_ttl=60_000)))
    assert stats_of(dead, bench.now_ms).oldest_age_s == 3.0
    assert message_at(dead, 1).arrived == at(2_000)


def test_consumers_with_their_partitions() -> None:
    bench = Bench(partitions=3)
    bench.join("b")
    bench.wait("10ms")
    bench.join("a")
    bench.wait("1s")
    bench.publish()
    second, first = consumers_of(bench.queues.queue("q"), ("", ""), 9)
    assert (first.client_id, first.partitions, second.partitions) == ("b", (0,), (1, 2))
    assert first.in_flight + second.in_flight == 1 and first.joined == at(0)
    bench.leave("b", may_return=True)
    assert consumers_of(bench.queues.queue("q"), ("g", "a"), 9)[0].away_until == at(6_010)
    free = Bench(ordering="none")
    free.join("c")
    assert consumers_of(free.queues.queue("q"), ("", ""), 9)[0].partitions is None


def test_groups_and_consumers_page_by_page() -> None:
    bench = Bench()
    for group in ("h", "g"):
        for client in ("b", "a"):
            bench.join(client, group)
    queue = bench.queues.queue("q")
    assert [one.name for one in groups_of(queue, "", 1)] == ["g"]
    assert [one.name for one in groups_of(queue, "g", 9)] == ["h"]
    assert not groups_of(queue, "h", 9)

    def page(after: tuple[str, str], limit: int) -> list[tuple[str, str]]:
        return [(one.group, one.client_id) for one in consumers_of(queue, after, limit)]

    assert page(("", ""), 3) == [("g", "a"), ("g", "b"), ("h", "a")]
    assert page(("h", "a"), 3) == [("h", "b")] and page(("g", "b"), 1) == [("h", "a")]
    assert page(("h", "b"), 3) == [] == page(("i", ""), 3)


def test_a_group_without_consumers_is_told_of_with_its_end() -> None:
    bench = Bench(limits={"max_queue_depth": 2})
    bench.join("c")
    bench.publish(count=2)
    bench.leave("c")
    queue = bench.queues.queue("q")
    stats = stats_of(queue, bench.now_ms)
    assert (stats.idle_groups, stats.idle_lag) == (1, 2)
    week_ms = 7 * 24 * 3_600_000
    (group,) = groups_of(queue, "", 9)
    assert (group.idle_since, group.removed_at) == (at(0), at(week_ms))
    end = at(week_ms).isoformat(timespec="seconds")
    assert words(bench, "no_consumer").endswith(f"the group is removed at {end}; 2 messages wait")
    assert words(bench, "full").startswith("the queue is full: 2 messages, the limit is 2; group 'g' has")
    assert words(bench, "full").endswith(
        f"has had no consumer since {at(0).isoformat()} and is removed at {end}"
    )
    bench.join("c", epoch=2)
    assert ("", "full") in codes(bench)
    assert groups_of(queue, "", 9)[0].removed_at is None and not stats_of(queue, bench.now_ms).idle_groups


def test_a_message_with_its_state_in_each_group() -> None:
    bench = Bench(partitions=1)
    bench.join("c", prefetch=1)
    bench.join("d", "h", prefetch=5)
    bench.publish("k", count=2)
    queue = bench.queues.queue("q")
    in_g = next(delivery for delivery in bench.sent if delivery.client_id == "c")
    bench.settle(in_g, Verb.NACK, 4_000)
    first, second = (message_of(queue, f"1-{number}") for number in (1, 2))
    assert first is not None and second is not None
    g, h = first.states
    assert (g.group, g.state, g.holder, g.next_retry, g.failures) == ("g", "RETRY", "c", at(4_000), 1)
    assert g.last_error == "why"
    assert (h.group, h.state, h.holder, h.lease_until) == ("h", "DELIVERED", "d", at(30_000))
    assert [state.blocked_by for state in second.states] == ["1-1", "1-1"]
    assert (first.key, first.partition, first.arrived) == ("k", 0, at(0))
    bench.settle(next(each for each in bench.sent if each.client_id == "d"), Verb.ACK)
    assert [state.state for state in message_at(queue, 1).states] == ["RETRY", "ACKED"]
    assert message_of(queue, "1-7") is None and message_of(queue, "nonsense") is None
    assert messages_after(queue, 0, 1) == [1] and messages_after(queue, 1, 9) == [2]


def test_dead_letters_by_filter() -> None:
    bench = Bench(partitions=1)
    bench.join("c")
    bench.publish(count=3)
    for delivery in list(bench.sent):
        bench.settle(delivery, Verb.REJECT)
    dead = bench.queues.queue("dlq/q")
    sequences, rest = letters_after(dead, LetterFilter(), 0, 9)
    letters = [letter for letter in (letter_at(dead, sequence) for sequence in sequences) if letter]
    assert rest == 0
    assert [letter.message_id for letter in letters] == ["1-1", "1-2", "1-3"]
    assert letters[0].id != letters[0].message_id and letters[0].moved == at(0)
    assert (letters[0].queue, letters[0].group, letters[0].reason) == ("q", "g", "rejected")
    assert letters_after(dead, LetterFilter(), 1, 9) == ([2, 3], 0)
    assert letters_after(dead, LetterFilter(), 0, 2) == ([1, 2], 2)

    def found(wanted: LetterFilter) -> int:
        return len(letters_after(dead, wanted, 0, 9)[0])

    assert found(LetterFilter(queue="q", group="g", reason="rejected", error="w*")) == 3
    assert found(LetterFilter(message_id="1-2")) == found(LetterFilter(message_id=letters[1].id)) == 1
    assert found(LetterFilter(reason="timeout")) == found(LetterFilter(group="h")) == 0
    assert found(LetterFilter(error="x*")) == found(LetterFilter(queue="r")) == 0
    assert found(LetterFilter(moved_after_ms=START_MS)) == found(LetterFilter(moved_before_ms=START_MS)) == 0
    bench.join("e", "again")
    message = message_of(dead, letters[0].id)
    assert message is not None and message.dead_letter == letters[0]


def test_a_search_for_dead_letters_looks_at_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embermq.queues.inspection.LOOKED_AT_MAX", 2)
    bench = Bench(partitions=1)
    bench.join("c")
    bench.publish(count=5)
    for delivery in list(bench.sent):
        bench.settle(delivery, Verb.REJECT)
    dead = bench.queues.queue("dlq/q")
    assert letters_after(dead, LetterFilter(group="h"), 0, 9) == ([], 2)
    assert letters_after(dead, LetterFilter(), 2, 9) == ([3, 4], 4)
    assert letters_after(dead, LetterFilter(), 4, 9) == ([5], 0)


@pytest.mark.promise("queues-42a")
def test_a_key_without_characters_is_a_key() -> None:
    bench = Bench(partitions=1)
    bench.join("c")
    bench.publish("", count=2)
    assert "blocked: key '' by message" in words(bench, "key_blocked")


@pytest.mark.promise("queues-42a")
def test_why_nothing_is_delivered() -> None:
    bench = Bench(partitions=2)
    assert codes(bench) == [("", "empty")]
    bench.publish(visible_ms=START_MS + 60_000)
    assert codes(bench) == [("", "delayed"), ("", "empty")]
    bench.publish("k", count=3)
    assert codes(bench)[-1] == ("", "no_group")
    bench.join("c", prefetch=2)
    bench.leave("c")
    assert codes(bench)[-1] == ("g", "no_consumer")
    bench.join("c", prefetch=2)
    assert ("g", "key_blocked") in codes(bench)
    assert "key 'k' by message 1-2, held by 'c' until 1970-01-01T00:17:10+00:00" in words(
        bench, "key_blocked"
    )
    bench.settle(bench.take()[-1], Verb.NACK, 5_000)
    assert "which is tried again at 1970-01-01T00:16:45+00:00" in words(bench, "key_blocked")
    assert words(bench, "backoff").startswith("1 message wait for a retry")
    bench.publish(count=4)
    assert "'c' may have no more: 2 unsettled, the prefetch is 2" in words(bench, "window_full")
    bench.leave("c", may_return=True)
    assert "the connection of 'c' is gone" in words(bench, "consumer_gone")


def test_no_partition_is_free() -> None:
    bench = Bench(partitions=1)
    bench.publish()
    bench.join("a")
    bench.join("b")
    assert "new consumers get partitions at" in words(bench, "no_partition")
    bench.wait("1s")
    assert "no partition is left for 'b': 2 consumers, 1 partition" in words(bench, "no_partition")
    bench.settle(bench.one(), Verb.ACK)
    bench.leave("b")
    bench.publish()
    assert codes(bench) == [("g", "under_way")]


def test_quantiles_are_of_the_last_minute() -> None:
    window = LatencyWindow()
    for sequence in range(100):
        window.arrived(sequence, 0)
        window.delivered(sequence, sequence + 1)
        window.delivered(sequence, 9_999)
    assert window.quantiles((0.5, 0.99), 100) == {0.5: 0.051, 0.99: 0.099}
    assert window.quantiles((0.5,), 60_099) == {0.5: 0.1}
    assert window.quantiles((0.5,), 60_100) == {}
    assert (window.count, window.total_ms) == (100, 5_050)


def test_measuring_has_bounds() -> None:
    window = LatencyWindow()
    for sequence in range(WAITING_MAX + 1):
        window.arrived(sequence, 0)
    window.delivered(WAITING_MAX, 1)
    assert window.count == 0
    window.forget(0)
    window.arrived(WAITING_MAX, 0)
    window.delivered(WAITING_MAX, 1)
    assert window.count == 1
    arrivals = Arrivals()
    assert arrivals.time_of(5) is None
    for number in range(3 * MARKS_MAX):
        arrivals.mark(number, number * 1_000)
        arrivals.mark(number, number * 1_000 + 999)
    assert arrivals.time_of(3 * MARKS_MAX - 1) == (3 * MARKS_MAX - 1) * 1_000
    told = arrivals.time_of(1_001)
    assert told is not None and 0 <= 1_001_000 - told < 10_000
