"""A queue or a group that an operator has paused hands out nothing, and loses nothing."""

from __future__ import annotations

import pytest
from tests.support.queue_bench import Bench

from embermq.queues.consumer import Newcomer
from embermq.queues.explaining import explain
from embermq.queues.inspection import groups_of, stats_of
from embermq.queues.names import Verb
from embermq.queues.settings import Ordering
from embermq.queues.settling import Outcome


def pause(bench: Bench, group: str = "", *, is_paused: bool = True) -> None:
    assert bench.queues.pause("q", group, is_paused=is_paused)
    bench.run()


@pytest.mark.promise("queues-42a")
@pytest.mark.parametrize("ordering", list(Ordering))
@pytest.mark.parametrize("group", ["", "g"])
def test_nothing_is_handed_out_while_it_is_paused(ordering: Ordering, group: str) -> None:
    bench = Bench(ordering=ordering.value)
    bench.join("c")
    bench.publish("a")
    held = bench.one()
    pause(bench, group)
    bench.publish("b", count=2)
    bench.publish("c", visible_ms=bench.now_ms + 1_000)
    bench.wait("10s")
    assert bench.settle(held, Verb.NACK) is Outcome.DONE
    bench.wait("10s")
    assert not bench.sent
    assert bench.queues.next_due_ms() != 0, "and it costs nothing meanwhile"
    queue = bench.queues.queue("q")
    assert [reason.code for reason in explain(queue, bench.now_ms)].count("paused") == 1
    assert stats_of(queue, bench.now_ms).paused is not bool(group)
    assert groups_of(queue, "", 9)[0].paused is bool(group)
    bench.restart()
    bench.join("c", epoch=2)
    bench.wait("10s")
    assert not bench.sent, "it outlives a start"
    pause(bench, group, is_paused=False)
    seen = set[int]()
    while bench.sent:
        for delivery in bench.take():
            seen.add(delivery.offset)
            bench.settle(delivery, Verb.ACK)
    assert seen == {0, 1, 2, 3}
    assert "paused" not in {reason.code for reason in explain(bench.queues.queue("q"), bench.now_ms)}


def test_other_groups_go_on_and_a_group_that_comes_waits_with_its_queue() -> None:
    bench = Bench()
    bench.join("c")
    bench.join("d", "h")
    pause(bench, "g")
    bench.publish()
    assert [each.client_id for each in bench.take()] == ["d"]
    pause(bench)
    bench.join("e", "new")
    pause(bench, "g", is_paused=False)
    bench.wait("1m")
    assert not bench.sent
    assert not bench.queues.pause("q", "nobody", is_paused=True)
    assert not bench.queues.pause("nothing", "", is_paused=True)
    pause(bench, is_paused=False)
    assert {each.client_id for each in bench.take()} >= {"c", "e"}


def test_a_suspect_of_a_paused_queue_keeps_its_consumer_from_no_other_queue() -> None:
    bench = Bench(ordering="none")
    bench.join("c", prefetch=2)
    bench.publish(count=2)
    bench.take()
    bench.leave("c")
    bench.queues.join("other", "g", Newcomer("c", 2, 32), bench.now_ms)
    bench.name = "other"
    bench.publish()
    at_work = bench.one()
    bench.name = "q"
    bench.join("c", epoch=2)
    bench.name = "other"
    bench.publish()
    assert not bench.sent, "a suspect waits until it has nothing else"
    pause(bench)
    bench.run()
    assert bench.one().queue == "other"
    assert bench.settle(at_work, Verb.ACK) is Outcome.DONE
