"""Consumers that are there and take nothing; deliveries that are not the newest of their message."""

from __future__ import annotations

from typing import Any

from tests.support.queue_bench import START_MS, Bench

from embermq.queues.explaining import explain
from embermq.queues.names import Verb
from embermq.queues.queue import ConsumerDelivery
from embermq.queues.settling import Outcome

LEASE_MS = 30_000


def stalled_bench(**settings: Any) -> tuple[Bench, list[ConsumerDelivery]]:
    """`a` owns both partitions and has got nothing of what it was handed."""
    given: dict[str, Any] = {"partitions": 2, "retry_policy": {"max_retries": 0}} | settings
    bench = Bench(**given)
    bench.writes = False
    bench.join("a", prefetch=4)
    bench.publish(count=6)
    handed = bench.take()
    assert len(handed) == 4
    bench.wait("30s")
    assert bench.queues.take_stalled() == [("q", "g", "a")] and not bench.sent
    bench.writes = True
    return bench, handed


def test_what_does_not_reach_its_socket_goes_to_another_one_free_of_charge() -> None:
    for settings in (
        {"ordering": "partition"},
        {"ordering": "none"},
        {"ordering": "strict", "partitions": 1},
    ):
        bench = Bench(**settings, retry_policy={"max_retries": 0})
        bench.join("a", prefetch=4)
        bench.join("b", prefetch=4)
        bench.wait("1s")
        bench.writes = False
        bench.publish(count=6)
        handed = bench.take()
        assert "a" in {each.client_id for each in handed}
        for delivery in handed:
            if delivery.client_id == "b":
                bench.queues.written((delivery,), bench.now_ms)
                bench.settle(delivery, Verb.ACK)
        bench.writes = True
        while bench.queues.queue("q").entries:
            assert bench.now_ms <= START_MS + 1_000 + LEASE_MS
            bench.wait("1s")
            while bench.sent:
                delivery = bench.sent.pop(0)
                assert (delivery.client_id, delivery.stamps.delivery_count) == ("b", 1)
                bench.settle(delivery, Verb.ACK)
        assert not bench.dead()


def test_a_first_other_one_gets_everything_at_once_and_who_resumes_its_share() -> None:
    bench, handed = stalled_bench()
    bench.join("b", prefetch=32)
    assert {each.client_id for each in bench.sent} == {"b"} and len(bench.take()) == 6
    for delivery in handed:
        bench.queues.written((delivery,), bench.now_ms)
        assert bench.settle(delivery, Verb.ACK) is Outcome.NOT_YOURS
    bench.queues.resume("q", "g", "a", bench.now_ms)
    bench.wait("100ms")
    bench.publish(count=2)
    assert sorted(each.client_id for each in bench.take()) == ["a", "b"]


def test_a_lone_one_goes_on_where_it_was_when_it_resumes() -> None:
    bench, handed = stalled_bench()
    bench.publish()
    assert not bench.sent
    bench.queues.resume("q", "g", "nobody", bench.now_ms)
    bench.queues.resume("none", "g", "a", bench.now_ms)
    bench.queues.resume("q", "g", "a", bench.now_ms)
    bench.run()
    again = bench.take()
    assert {each.offset for each in again} == {each.offset for each in handed}
    assert {each.stamps.delivery_count for each in again} == {1}


def test_its_ack_counts_all_the_same_as_long_as_nobody_else_has_it() -> None:
    bench, handed = stalled_bench()
    assert bench.settle(handed[0], Verb.NACK) is Outcome.LATE
    assert bench.settle(handed[0], Verb.ACK) is Outcome.DONE


def test_who_comes_back_has_not_stalled() -> None:
    bench, _ = stalled_bench()
    bench.leave("a", may_return=True)
    bench.join("a", epoch=2, prefetch=4)
    assert len(bench.take()) == 4


def test_who_is_away_does_not_stall_and_what_it_never_got_is_given_back() -> None:
    bench = Bench(performance={"delivery_timeout": "1s"})
    bench.writes = False
    bench.join("a")
    bench.publish()
    bench.take()
    bench.leave("a", may_return=True)
    bench.wait("2s")
    assert not bench.queues.take_stalled()
    bench.join("a", epoch=2)
    assert bench.one().stamps.delivery_count == 1


def test_leaving_while_stalled_leaves_nothing_behind() -> None:
    bench, _ = stalled_bench()
    bench.leave("a")
    bench.join("a", prefetch=4)
    assert len(bench.take()) == 4
    group = bench.queues.queue("q").groups["g"]
    assert group.lanes.owners() == ["a", "a"]


def test_stalling_again_and_again_costs_nothing() -> None:
    bench = Bench(partitions=2)
    bench.join("a")
    bench.join("b")
    bench.wait("1s")
    bench.publish(count=1_000)
    group = bench.queues.queue("q").groups["g"]
    bench.writes = False
    for _ in range(50):
        for name in "ab":
            bench.queues.resume("q", "g", name, bench.now_ms)
        bench.wait("31s")
    sizes = [len(consumer.work) for consumer in group.members.values()]
    assert max(sizes) <= 4, sizes


def test_operators_are_told() -> None:
    bench, _ = stalled_bench()
    bench.join("b", prefetch=1)
    told = {reason.code: reason.text for reason in explain(bench.queues.queue("q"), bench.now_ms)}
    assert "'a' took nothing" in told["consumer_stalled"]
    assert "no_partition" not in told


def test_only_the_newest_delivery_begins_a_lease() -> None:
    bench = Bench(retry_policy={"initial_backoff": "0s"})
    bench.join("c")
    bench.publish()
    first = bench.one()
    bench.writes = False
    bench.wait("30s")
    second = bench.one()
    group = bench.queues.queue("q").groups["g"]
    assert not bench.queues.is_newest(first) and bench.queues.is_newest(second)
    bench.queues.written((first,), bench.now_ms)
    assert group.lease_until_ms(1) == 0
    bench.queues.written((second,), bench.now_ms)
    assert group.lease_until_ms(1) == bench.now_ms + LEASE_MS


def test_a_delivery_of_a_queue_that_was_deleted_says_nothing_of_the_next_one() -> None:
    bench = Bench()
    bench.join("c")
    bench.publish()
    old = bench.one()
    bench.settle(old, Verb.ACK)
    assert bench.queues.delete("q")
    assert not bench.queues.is_newest(old)
    bench.configure()
    bench.writes = False
    bench.join("c")
    bench.publish()
    new = bench.one()
    assert (new.stamps.sequence, new.client_id, new.epoch) == (1, "c", 1)
    bench.queues.written((old,), bench.now_ms)
    assert bench.queues.queue("q").groups["g"].lease_until_ms(1) == 0
    assert not bench.queues.holds(old, 1) and bench.queues.holds(new, 1)
