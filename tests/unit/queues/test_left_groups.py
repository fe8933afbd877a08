"""Who has left its group may still ack what it had last, without naming the group."""

from __future__ import annotations

import tracemalloc

import pytest
from tests.support.queue_bench import Bench

from embermq.queues import group as group_module
from embermq.queues import queue as queue_module
from embermq.queues.errors import PropertyRefused
from embermq.queues.names import Verb
from embermq.queues.queue import ConsumerDelivery
from embermq.queues.settling import Outcome, SettleRequest


def says(bench: Bench, verb: Verb, delivery: ConsumerDelivery, *, epoch: int = 1) -> Outcome:
    """Without a group."""
    request = SettleRequest(verb, (delivery.stamps.message_id,))
    (outcome,) = bench.queues.settle("q", request, delivery.client_id, epoch, bench.now_ms)
    bench.run()
    return outcome


def test_the_last_holder_may_ack_and_nothing_else() -> None:
    bench = Bench()
    bench.join("c")
    bench.publish(count=2)
    first, second = bench.take()
    bench.leave("c")
    for verb in (Verb.NACK, Verb.REJECT, Verb.EXTEND):
        assert says(bench, verb, first) is Outcome.LATE
    assert says(bench, Verb.ACK, first, epoch=2) is Outcome.NOT_YOURS
    assert says(bench, Verb.ACK, first) is Outcome.DONE
    assert says(bench, Verb.ACK, first) is Outcome.ALREADY_SETTLED
    bench.join("d")
    assert [each.stamps.message_id for each in bench.take()] == [second.stamps.message_id]
    assert says(bench, Verb.ACK, second) is Outcome.NOT_YOURS


def test_a_message_that_waits_for_its_retry_may_be_acked_too() -> None:
    bench = Bench()
    bench.join("c")
    bench.publish()
    held = bench.one()
    assert bench.settle(held, Verb.NACK, 60_000) is Outcome.DONE
    bench.leave("c")
    assert says(bench, Verb.ACK, held) is Outcome.DONE
    bench.join("d")
    bench.wait("2m")
    assert bench.take() == []


def test_a_batch_in_many_groups_has_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ids in all groups would take seconds."""
    monkeypatch.setattr(queue_module, "SETTLED_MAX", 5)
    bench = Bench()
    for group in ("g", "h"):
        bench.join("c", group)
    bench.publish(count=3)
    held = [each for each in bench.take() if each.stamps.group == "g"]
    ids = tuple(each.stamps.message_id for each in held)

    def asks(*ids: str, group: str = "") -> list[Outcome]:
        request = SettleRequest(Verb.ACK, ids, group)
        return bench.queues.settle("q", request, "c", 1, bench.now_ms)

    with pytest.raises(PropertyRefused, match="3 message ids in 2 groups: user property group-id is needed"):
        asks(*ids)
    assert len(bench.rows.entries) == 3 and bench.queues.queue("q").groups["g"].owed == 3
    assert asks(*ids[:2]) == [Outcome.DONE] * 2
    assert asks(*ids, group="h") == [Outcome.DONE] * 3
    for group in ("g", "h"):
        bench.queues.leave("q", group, "c", bench.now_ms)
    assert asks(ids[2], *("1-f",) * 5) == [Outcome.NOT_YOURS] * 6, (
        "those that were left are looked at while they are few"
    )
    assert asks(ids[2]) == [Outcome.DONE]


def test_the_group_in_which_it_is_comes_first() -> None:
    """An ack that is said twice settles nothing in a group that was left."""
    bench = Bench()
    bench.join("c")
    bench.join("c", "h")
    bench.publish()
    in_g, in_h = sorted(bench.take(), key=lambda each: each.stamps.group)
    bench.leave("c")
    assert says(bench, Verb.ACK, in_h) is Outcome.DONE
    assert says(bench, Verb.ACK, in_h) is Outcome.ALREADY_SETTLED
    assert len(bench.rows.entries) == 1, "g has not settled it"
    assert bench.settle(in_g, Verb.ACK) is Outcome.DONE
    assert not bench.rows.entries


def test_what_only_the_group_that_was_left_has_handed_out_counts_there() -> None:
    bench = Bench()
    bench.join("c")
    bench.publish()
    held = bench.one()
    bench.join("d", "h")
    in_h = bench.one()
    bench.join("c", "h")
    bench.leave("c")
    assert says(bench, Verb.ACK, held) is Outcome.DONE
    assert bench.settle(in_h, Verb.ACK) is Outcome.DONE
    assert not bench.rows.entries


def test_so_many_are_remembered_and_no_more() -> None:
    bench = Bench()
    bench.join("holder", prefetch=1)
    bench.publish()
    name = "c" * 60_000
    tracemalloc.start()
    for number in range(group_module.LEFT_MAX + 10):
        bench.join(f"{name}{number}")
        bench.leave(f"{name}{number}")
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    left = bench.queues.queue("q").groups["g"].left
    assert len(left) == group_module.LEFT_MAX and size < 2_000 * len(left), "however long a client id is"
    assert hash(f"{name}9") not in left and hash(f"{name}10") in left
    bench.join(f"{name}10")
    assert hash(f"{name}10") not in left


def test_nobody_is_remembered_who_has_left_nothing_behind() -> None:
    bench = Bench()
    bench.join("c")
    bench.publish()
    assert bench.settle(bench.one(), Verb.ACK) is Outcome.DONE
    bench.leave("c")
    assert not bench.queues.queue("q").groups["g"].left
