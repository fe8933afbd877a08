"""A broker that stood still hands out nothing of a queue before it knows that the queue is still its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.hand_driven import HandLink
from tests.support.queue_bench import Bench
from tests.unit.queues.test_consumers import TOPIC, Hand, consumes

from embermq.mqtt.wire.packets import Puback
from embermq.queues.names import Verb
from embermq.queues.settling import Outcome


def believe(bench: Bench) -> None:
    """What is asked is answered, and nothing was asked twice."""
    asked = bench.queues.take_unsure()
    assert len(asked) == len(dict(asked))
    for queue, number in asked:
        bench.queues.believe(queue.settings.name, number)
    bench.run()


@pytest.mark.promise("cluster-16")
@pytest.mark.parametrize("verb", [None, Verb.NACK], ids=["a lease", "a retry"])
def test_what_is_over_by_its_own_clock_is_not_handed_out_before(verb: Verb | None) -> None:
    bench = Bench()
    bench.join("a", prefetch=1)
    bench.publish()
    held = bench.one()
    bench.join("b")
    if verb is not None:
        bench.settle(held, verb, delay_ms=10_000)
    bench.queues.doubt()
    bench.wait("1h")
    assert not bench.take()
    assert bench.queues.next_due_ms() != 0, "and it costs nothing meanwhile"
    believe(bench)
    bench.wait("10s")
    assert bench.one().stamps.delivery_count == 2


@pytest.mark.promise("cluster-16")
def test_what_there_is_room_for_is_not_handed_out_before_and_settling_goes_on() -> None:
    bench = Bench()
    bench.join("a", prefetch=1)
    bench.publish(count=2)
    held = bench.one()
    bench.queues.doubt()
    assert bench.settle(held, Verb.ACK) is Outcome.DONE and not bench.take()
    believe(bench)
    assert bench.one().offset == 1


def test_an_answer_from_before_it_stood_still_again_says_nothing() -> None:
    bench = Bench()
    bench.queues.doubt()
    bench.join("a")
    ((queue, number),) = bench.queues.take_unsure()
    bench.queues.doubt()
    bench.queues.believe(queue.settings.name, number)
    bench.publish()
    assert not bench.take()
    believe(bench)
    assert bench.one().offset == 0


def test_queues_do_not_wait_for_one_another() -> None:
    bench = Bench()
    bench.join("a")
    bench.queues.doubt()
    bench.name = "another"
    bench.configure()
    bench.join("a")
    bench.publish()
    assert bench.one().queue == "another", "it was made since"


def consumer() -> tuple[Hand, HandLink, list[Callable[[], None]]]:
    """That has a message of somebody else, and room for no more; one of the queue is handed out to it and waits. And
    who is asked whether the queue is still ours."""
    hand = Hand()
    link = hand.connects("c", receive_maximum=1, acknowledges=False)
    link.subscribes("plain")
    hand.publishes("plain", b"plain")
    consumes(link, TOPIC)
    hand.publishes(TOPIC, b"work")
    assert link.payloads == [b"plain"]
    asked: list[Callable[[], None]] = []
    hand.queues._store.confirm = lambda queue, then: asked.append(then)  # type: ignore[method-assign]
    return hand, link, asked


@pytest.mark.promise("cluster-16")
def test_what_was_handed_out_before_and_has_not_gone_waits_too() -> None:
    hand, link, asked = consumer()
    hand.queues.stood_still()
    link.does(Puback(link.messages[-1].packet_id))
    hand.rests()
    assert link.payloads == [b"plain"] and len(asked) == 1
    asked.pop()()
    hand.rests()
    assert link.payloads == [b"plain", b"work"]


def test_where_no_other_broker_can_be_it_goes_on_at_once() -> None:
    hand, link, _ = consumer()
    hand.queues._store.confirm = lambda queue, then: then()  # type: ignore[method-assign]
    hand.queues.stood_still()
    link.does(Puback(link.messages[-1].packet_id))
    hand.rests()
    assert link.payloads == [b"plain", b"work"]
