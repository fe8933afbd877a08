"""A message that ends its consumer costs the others nothing: who is lost is suspected, and tried alone [queues-19]."""

from __future__ import annotations

import pytest
from tests.support.queue_bench import Bench

from embermq.model.queue_rows import DeadLetterReason
from embermq.queues.consumer import Newcomer
from embermq.queues.names import Verb
from embermq.queues.queue import ConsumerDelivery
from embermq.queues.settings import Ordering
from embermq.queues.settling import Outcome, SettleRequest

POISON = 3
"""The offset of the message that ends whoever has it."""
HEALTHY = 31


class Crew:
    """Consumers that work on what they get, one after the other, and are ended by POISON."""

    def __init__(self, bench: Bench, *clients: str) -> None:
        self.bench = bench
        self.epochs = dict.fromkeys(clients, 1)
        self.acked: set[int] = set()
        self.most = 0
        """Messages that one consumer had at a time after the first crash."""
        self.crashes = 0

    def join(self) -> None:
        for client, epoch in self.epochs.items():
            self.bench.join(client, epoch=epoch)
        self.bench.wait("1s")

    def work(self) -> None:
        """Until nothing is sent any more."""
        while sent := self.bench.take():
            by_client: dict[str, list[ConsumerDelivery]] = {}
            for delivery in sent:
                by_client.setdefault(delivery.client_id, []).append(delivery)
            for client, work in by_client.items():
                if self.crashes:
                    self.most = max(self.most, len(work))
                if any(each.offset == POISON for each in work):
                    self.crash(client)
                    continue
                for each in work:
                    assert self.bench.settle(each, Verb.ACK) is Outcome.DONE
                    self.acked.add(each.offset)
            self.bench.wait("1s")

    def crash(self, client: str) -> None:
        self.crashes += 1
        self.bench.leave(client)
        self.epochs[client] += 1
        self.bench.join(client, epoch=self.epochs[client])


@pytest.mark.promise("queues-19", "queues-25")
@pytest.mark.parametrize("ordering", list(Ordering))
@pytest.mark.parametrize("clients", [("a",), ("a", "b", "c")])
def test_a_message_that_ends_its_consumers_takes_no_other_with_it(
    ordering: Ordering, clients: tuple[str, ...]
) -> None:
    bench = Bench(ordering=ordering.value)
    for number in range(HEALTHY + 1):
        bench.publish(f"k{number}")
    crew = Crew(bench, *clients)
    crew.join()
    crew.work()
    assert bench.dead() == [("g", DeadLetterReason.MAX_RETRIES)]
    assert crew.acked == set(range(HEALTHY + 1)) - {POISON}
    assert crew.crashes == 12, "the first one charges nobody"


@pytest.mark.promise("queues-19")
@pytest.mark.parametrize("ordering", [Ordering.NONE, Ordering.PARTITION])
def test_a_suspect_is_handed_to_a_consumer_that_has_nothing_else(ordering: Ordering) -> None:
    bench = Bench(ordering=ordering.value)
    bench.join("a")
    bench.publish(count=4)
    assert len(bench.take()) == 4
    bench.leave("a")
    bench.join("a", epoch=2)
    bench.publish(count=2)
    for left in range(4, 0, -1):
        suspect = bench.one()
        assert suspect.offset < 4 and suspect.stamps.delivery_count == 2, left
        bench.settle(suspect, Verb.ACK)
    assert bench.offsets() == [4, 5], "everything else comes as before"


@pytest.mark.promise("queues-19")
@pytest.mark.parametrize("ordering", [Ordering.NONE, Ordering.PARTITION])
def test_who_is_at_work_finishes_it_before_it_gets_a_suspect(ordering: Ordering) -> None:
    bench = Bench(ordering=ordering.value)
    bench.join("a", prefetch=1)
    bench.publish()
    suspect = bench.one()
    bench.join("b")
    bench.wait("1s")
    bench.publish(count=9)
    at_work = bench.take()
    assert {each.client_id for each in at_work} == {"b"}
    bench.leave("a")
    bench.publish(count=3)
    assert not bench.sent, "nothing new until it has nothing"
    for each in at_work:
        bench.settle(each, Verb.ACK)
    assert bench.one().offset == suspect.offset


@pytest.mark.promise("queues-15", "queues-19")
def test_while_one_consumer_makes_room_for_a_suspect_the_others_go_on() -> None:
    bench = Bench(ordering="none")
    for client in ("a", "b", "c"):
        bench.join(client, prefetch=4)
    bench.publish(count=6)
    held = bench.take()
    bench.leave("a")
    bench.publish(count=2)
    (one, other) = bench.take()
    assert one.client_id == other.client_id, "the other one waits for its suspect"
    waiting = ({"b", "c"} - {one.client_id}).pop()
    for each in [each for each in held if each.client_id == waiting]:
        bench.settle(each, Verb.ACK)
    assert [each.client_id for each in bench.take()] == [waiting]


@pytest.mark.promise("queues-19")
def test_a_suspect_that_is_gone_keeps_nobody_waiting() -> None:
    bench = Bench(ordering="none")
    bench.join("a", prefetch=1)
    bench.publish()
    suspect = bench.one()
    bench.join("b")
    bench.publish(count=2)
    bench.take()
    bench.leave("a")
    assert bench.settle(suspect, Verb.ACK) is Outcome.DONE, "a late ack counts"
    bench.publish(count=2)
    assert bench.offsets() == [3, 4]


@pytest.mark.promise("queues-19")
def test_a_nack_clears_a_suspect_and_the_end_of_a_lease_does_not() -> None:
    bench = Bench(ordering="none", retry_policy={"nack_delay": "immediate", "initial_backoff": "0s"})
    bench.publish(count=2)
    bench.join("a")
    bench.take()
    bench.leave("a")
    bench.join("a", epoch=2)
    bench.one()
    bench.wait("31s")
    again = bench.one()
    assert again.stamps.delivery_count == 3, "alone once more"
    bench.settle(again, Verb.NACK)
    other = bench.one()
    assert other.offset != again.offset, "the second suspect goes before what is none"
    bench.settle(other, Verb.ACK)
    assert bench.one().stamps.delivery_count == 4


@pytest.mark.promise("queues-19")
def test_suspicion_outlives_a_restart() -> None:
    bench = Bench()
    bench.publish(count=3)
    bench.join("a")
    assert len(bench.take()) == 3
    bench.leave("a")
    bench.restart()
    bench.join("a", epoch=2)
    for _ in range(3):
        suspect = bench.one()
        assert suspect.stamps.delivery_count == 2
        bench.settle(suspect, Verb.ACK)
    assert not bench.rows.entries and not bench.rows.marks


@pytest.mark.promise("queues-19")
def test_a_client_that_consumes_two_queues_has_nothing_of_the_other_one_beside_a_suspect() -> None:
    bench = Bench()
    bench.publish(count=2)
    bench.name = "other"
    bench.publish(count=2)

    def connect(epoch: int) -> list[tuple[str, int]]:
        for name in ("q", "other"):
            bench.queues.join(name, "g", Newcomer("c", epoch, 32), bench.now_ms)
        bench.run()
        return [(each.queue, each.stamps.delivery_count) for each in bench.sent]

    def disconnect() -> None:
        bench.take()
        for name in ("q", "other"):
            bench.queues.leave(name, "g", "c", bench.now_ms)
        bench.run()

    assert len(connect(1)) == 4
    disconnect()
    for epoch in range(2, 14):
        (_,) = connect(epoch)
        disconnect()
    assert len(bench.dead()) == 1, "one is to blame at a time"
    seen = 0
    connect(20)
    while bench.sent:
        delivery = bench.one()
        bench.name = delivery.queue
        bench.settle(delivery, Verb.ACK)
        seen += 1
    assert seen == 3


@pytest.mark.promise("queues-19")
def test_what_a_client_comes_back_without_is_given_back_with_the_first_lease() -> None:
    bench = Bench()
    bench.publish(count=5)
    bench.join("a")
    kept = bench.take()
    bench.leave("a", may_return=True)
    bench.wait("1s")
    bench.join("a", epoch=2, kept_ids=tuple(each.stamps.message_id for each in kept))
    assert not bench.sent
    bench.wait("30s")
    for _ in kept:
        suspect = bench.one()
        assert suspect.stamps.delivery_count == 2
        assert bench.queues.queue("q").groups["g"].attempts_of(suspect.stamps.sequence).failures == 0
        bench.settle(suspect, Verb.ACK)


@pytest.mark.promise("queues-22")
def test_a_slow_task_costs_the_messages_behind_it_nothing() -> None:
    bench = Bench()
    bench.join("a")
    bench.publish(count=3)
    first, second, third = bench.take()
    for _ in range(10):
        bench.wait("20s")
        bench.settle(first, Verb.EXTEND)
    assert not bench.sent
    bench.settle(first, Verb.ACK)
    bench.wait("29s")
    assert bench.settle(third, Verb.EXTEND) is Outcome.DONE, "it has no lease yet, and needs none"
    bench.wait("1s")
    group = bench.queues.queue("q").groups["g"]
    assert group.attempts_of(second.stamps.sequence).failures == 1
    assert group.attempts_of(third.stamps.sequence).failures == 0
    assert group.lease_until_ms(third.stamps.sequence) == bench.now_ms + 30_000


@pytest.mark.promise("queues-22")
def test_leases_run_for_as_many_messages_as_a_consumer_says_that_it_works_on() -> None:
    bench = Bench(ordering="none")
    bench.join("a", concurrency=2)
    bench.publish(count=4)
    bench.take()
    group = bench.queues.queue("q").groups["g"]

    def running() -> list[int]:
        return [number for number in range(1, 5) if group.lease_until_ms(number)]

    assert running() == [1, 2]
    bench.join("a", concurrency=3)
    assert running() == [1, 2, 3]
    bench.wait("30s")
    assert running() == [4]


@pytest.mark.promise("queues-19")
def test_a_queue_that_is_deleted_keeps_its_consumers_from_nothing() -> None:
    bench = Bench(ordering="none")
    bench.join("a")
    bench.publish(count=2)
    assert len(bench.take()) == 2
    bench.leave("a")
    bench.join("a", epoch=2)
    bench.name = "other"
    bench.join("a", epoch=2)
    bench.name = "q"
    bench.queues.purge("q", bench.queues.queue("q").end(), 10)
    assert bench.queues.delete("q")
    bench.take()
    bench.name = "other"
    bench.publish(count=2)
    assert bench.offsets() == [2, 3]


@pytest.mark.promise("queues-19")
def test_a_consumer_that_has_just_gone_away_is_handed_no_suspect() -> None:
    bench = Bench()
    bench.join("a")
    bench.publish(count=2)
    assert len(bench.take()) == 2
    bench.leave("a")
    bench.join("b")
    bench.wait("1s")
    first = bench.one()
    request = SettleRequest(Verb.ACK, (first.stamps.message_id,), "g")
    bench.queues.settle("q", request, "b", 1, bench.now_ms)
    bench.leave("b", may_return=True)
    assert not bench.sent
    bench.join("b", epoch=2)
    assert bench.one().offset == 1


@pytest.mark.promise("queues-19")
def test_a_queue_of_another_ordering_keeps_nobody_waiting_for_a_suspect_of_before() -> None:
    bench = Bench()
    bench.join("a")
    bench.publish()
    bench.take()
    bench.leave("a")
    bench.name = "other"
    bench.join("b")
    bench.publish()
    held = bench.one()
    bench.name = "q"
    bench.join("b")
    bench.wait("1s")
    assert not bench.sent, "its suspect waits until b holds nothing"
    bench.queues.purge("q", bench.queues.queue("q").end(), 10)
    bench.configure(ordering="none")
    bench.name = "other"
    bench.settle(held, Verb.ACK)
    bench.publish()
    assert bench.one().offset == 2


@pytest.mark.promise("queues-19")
def test_a_suspect_goes_to_an_idle_consumer_though_another_one_makes_room_for_it() -> None:
    bench = Bench(ordering="none")
    bench.join("a")
    bench.publish()
    bench.take()
    bench.leave("a")
    bench.name = "other"
    bench.configure(ordering="none")
    for client in ("b", "c"):
        bench.join(client, prefetch=1)
    bench.publish(count=2)
    assert {each.client_id for each in bench.take()} == {"b", "c"}
    bench.name = "q"
    for client in ("b", "c"):
        bench.join(client)
    assert not bench.sent
    bench.join("idle")
    assert bench.one().client_id == "idle"
