"""What operators do to a queue: empty it, delete it, remove a group."""

from __future__ import annotations

import pytest
from tests.support.queue_bench import Bench

from embermq.model.queue_rows import QueueWrites
from embermq.queues.errors import SettingsRefused
from embermq.queues.names import Verb
from embermq.queues.publication import Publication
from embermq.queues.settings import operator_settings
from embermq.queues.settling import Outcome, SettleRequest


def test_a_purge_takes_what_is_held_what_waits_and_what_is_delayed() -> None:
    bench = Bench(partitions=1)
    bench.join("c", prefetch=2)
    bench.publish("k", count=3)
    bench.publish(count=2, visible_ms=bench.now_ms + 60_000)
    held = bench.one()
    queue = bench.queues.queue("q")
    assert bench.queues.purge("q", queue.end(), 1_000) == 5
    bench.run()
    assert queue.depth() == 0 and queue.is_empty() and not queue.delayed
    assert not bench.rows.entries and not bench.rows.delayed and not bench.rows.marks
    assert bench.settle(held, Verb.ACK) is Outcome.ALREADY_SETTLED
    assert queue.counts.purged == 5
    bench.publish("k")
    assert bench.one().stamps.sequence == 6, "the key is free again"
    bench.wait("120s")
    assert len(queue.entries) == 1, "nothing that was delayed comes back"


def test_a_purge_goes_in_pieces_and_leaves_what_comes_meanwhile() -> None:
    bench = Bench(partitions=2)
    bench.publish(count=5)
    queue = bench.queues.queue("q")
    end = queue.end()
    assert bench.queues.purge("q", end, 3) == 3
    bench.publish(count=2)
    assert bench.queues.purge("q", end, 3) == 2
    assert bench.queues.purge("q", end, 3) == 0
    assert sorted(queue.entries) == [6, 7]
    assert bench.queues.purge("nothing", 10, 10) == 0


def test_a_purge_leaves_a_publish_that_is_under_way() -> None:
    bench = Bench()
    acceptance = bench.queues.accept("q", Publication(None), 10, 0, bench.now_ms)
    queue = bench.queues.queue("q")
    assert bench.queues.purge("q", queue.end(), 10) == 0
    assert not queue.is_empty() and not bench.queues.delete("q")
    bench.queues.commit("q", [(acceptance.ticket, 0)])
    assert len(queue.entries) == 1


def test_delete_wants_an_empty_queue_and_leaves_nothing_stored() -> None:
    bench = Bench(partitions=3)
    bench.join("c")
    bench.publish()
    assert not bench.queues.delete("q")
    bench.settle(bench.one(), Verb.ACK)
    old = bench.queues.queue("q").generation
    assert bench.queues.delete("q") and not bench.queues.delete("q")
    assert bench.queues.find("q") is None and list(bench.queues.names()) == []
    bench.run()
    bench.wait("10s")
    assert not bench.rows.queues and not bench.rows.groups
    bench.publish()
    again = bench.queues.queue("q")
    assert again.generation > old and again.settings.partitions == 10 and not again.groups


def test_a_deleted_queue_is_deleted_also_when_ticks_are_refused() -> None:
    bench = Bench()
    bench.queues.queue("q").group("h", bench.now_ms)
    refused = bench.gathered.take()
    generation = bench.queues.queue("q").generation
    assert refused.groups
    bench.queues.delete("q")
    bench.gathered.give_back(refused)
    writes = bench.gathered.take()
    assert writes.ended_queues == {generation}
    assert not writes.queues and not writes.groups


def test_writes_of_a_queue_that_ends_in_their_tick_are_let_go_of() -> None:
    bench = Bench()
    bench.join("c")
    writes = QueueWrites()
    writes.groups = dict(bench.rows.groups)
    writes.queues = dict(bench.rows.queues)
    writes.dedup_ids = {(1, "x"): 5, (2, "x"): 5}
    writes.end_queue(1)
    assert not writes.groups and not writes.queues and writes.dedup_ids == {(2, "x"): 5}


def test_a_group_is_removed_with_what_it_alone_owed() -> None:
    bench = Bench()
    bench.join("c")
    bench.join("d", "h")
    bench.publish()
    held = {delivery.client_id: delivery for delivery in bench.sent}
    bench.settle(held["c"], Verb.ACK)
    assert bench.queues.remove_group("q", "h")
    assert not bench.queues.remove_group("q", "h")
    bench.run()
    assert not bench.rows.entries and list(bench.queues.queue("q").groups) == ["g"]


def test_names_that_operators_may_not_use() -> None:
    assert operator_settings("dlq/tasks", {"limits": {"message_ttl": "24h"}}).name == "dlq/tasks"
    for name in ("", "a//b", "a/$ack", "a/+", "x" * 256, "responses/me"):
        with pytest.raises(SettingsRefused):
            operator_settings(name, {})


def test_an_ordering_that_changes_in_the_tick_of_the_last_ack_leaves_the_queue_at_rest() -> None:
    """It was due at once for ever, and the broker did nothing else any more."""
    bench = Bench(partitions=1)
    bench.join("c", prefetch=1)
    bench.publish("k")
    held = bench.one()
    request = SettleRequest(Verb.ACK, (held.stamps.message_id,), "g")
    bench.queues.settle("q", request, "c", held.epoch, bench.now_ms)
    bench.configure(ordering="none")
    bench.run()
    assert bench.queues.next_due_ms() != 0
    bench.publish("k")
    bench.settle(bench.one(), Verb.ACK)


def test_another_prefetch_holds_for_consumers_that_are_there() -> None:
    for ordering in ("partition", "none"):
        bench = Bench(ordering=ordering)
        bench.join("c", prefetch=1)
        bench.publish(count=4)
        assert len(bench.take()) == 1
        bench.queues.set_prefetch("q", "g", "c", 3, bench.now_ms)
        bench.run()
        held = bench.take()
        assert len(held) == 2
        bench.queues.set_prefetch("q", "g", "c", 1, bench.now_ms)
        bench.settle(held[0], Verb.ACK)
        assert not bench.take()
        for name, group, client in (("q", "g", "x"), ("q", "x", "c"), ("x", "g", "c")):
            bench.queues.set_prefetch(name, group, client, 9, bench.now_ms)


def test_another_prefetch_brings_nobody_back_who_is_away() -> None:
    bench = Bench()
    bench.join("c", prefetch=1)
    bench.leave("c", may_return=True)
    bench.queues.set_prefetch("q", "g", "c", 3, bench.now_ms)
    bench.publish(count=4)
    assert not bench.take()
    bench.wait("5s")
    assert not bench.queues.is_member("q", "g", "c")
