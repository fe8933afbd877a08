"""An id means one message to a group, whatever came back, and whichever groups were removed and made again."""

from __future__ import annotations

import pytest
from tests.support.queue_bench import Bench

from embermq.model.queue_rows import EntryRow
from embermq.queues.identities import Identities
from embermq.queues.names import Verb
from embermq.queues.settling import Outcome


def rejected_by(*groups: str) -> Bench:
    """One message that these groups have rejected, and then were removed."""
    bench = Bench(partitions=1, limits={"message_ttl": "1h", "ttl_action": "dlq"})
    for group in groups:
        bench.join(f"c-{group}", group)
    bench.publish()
    for delivery in bench.take():
        assert bench.settle(delivery, Verb.REJECT) is Outcome.DONE
    remove(bench, *groups)
    return bench


def remove(bench: Bench, *groups: str) -> None:
    for group in groups:
        bench.queues.leave("q", group, f"c-{group}", bench.now_ms)
        assert bench.queues.remove_group("q", group)
    bench.wait("0s")


def retry(bench: Bench) -> None:
    bench.queues.retry_dead_letters("dlq/q", list(bench.queues.queue("dlq/q").entries), bench.now_ms)
    bench.wait("0s")


@pytest.mark.promise("queues-35")
def test_what_came_back_for_a_group_that_is_gone_dies_as_its_dead_letter() -> None:
    bench = rejected_by("b", "c")
    retry(bench)
    remove(bench, "b", "c")
    assert len(bench.queues.queue("q").entries) == 2, "nobody is left"
    bench.wait("2h")
    assert bench.dead() == [("b", "expired"), ("c", "expired")]
    bench.join("d", "d")
    retry(bench)
    assert bench.take() == [], "it was for these two"
    for group in ("b", "c"):
        bench.join(f"c-{group}", group, epoch=2)
        assert bench.settle(bench.one(), Verb.ACK) is Outcome.DONE
    assert not bench.rows.entries


@pytest.mark.promise("queues-35")
@pytest.mark.parametrize("restarts", [False, True])
def test_a_group_that_begins_anew_has_what_came_back_for_it_alone(restarts: bool) -> None:
    bench = Bench(partitions=1)
    bench.join("c-a", "a")
    bench.queues.open_group("q", "b", bench.now_ms)
    bench.publish()
    first = bench.one()
    bench.settle(first, Verb.REJECT)
    retry(bench)
    assert bench.one().stamps.message_id == first.stamps.message_id
    bench.queues.leave("q", "a", "c-a", bench.now_ms)
    assert bench.queues.remove_group("q", "b") and bench.queues.remove_group("q", "a")
    bench.wait("0s")
    assert len(bench.rows.entries) == 2, "the one for all, and the one that came back"
    if restarts:
        bench.queues.open_group("q", "a", bench.now_ms)
        bench.rows.apply(bench.gathered.take(), bench.log_end)
        bench.restart()
    bench.join("c-a", "a", epoch=2)
    bench.wait("0s")
    delivery = bench.one()
    assert delivery.stamps.message_id == first.stamps.message_id
    assert bench.settle(delivery, Verb.ACK) is Outcome.DONE
    bench.wait("1h")
    bench.restart()
    bench.join("c-a", "a", epoch=3)
    assert bench.take() == [] and bench.queues.queue("q").groups["a"].owed == 0


@pytest.mark.promise("queues-35")
def test_what_others_owe_too_is_theirs_still() -> None:
    bench = Bench(partitions=1)
    bench.join("c-a", "a")
    bench.queues.open_group("q", "b", bench.now_ms)
    bench.publish()
    bench.settle(bench.one(), Verb.REJECT)
    retry(bench)
    bench.take()
    bench.queues.leave("q", "a", "c-a", bench.now_ms)
    assert bench.queues.remove_group("q", "a")
    bench.join("c-a", "a", epoch=2)
    bench.wait("0s")
    assert bench.settle(bench.one(), Verb.ACK) is Outcome.DONE
    bench.restart()
    bench.join("c-a", "a", epoch=3)
    assert bench.take() == [], "its mark says that it had it"
    bench.join("c-b", "b")
    assert bench.settle(bench.one(), Verb.ACK) is Outcome.DONE
    assert not bench.rows.entries and not bench.rows.marks


@pytest.mark.promise("queues-35")
def test_a_second_dead_letter_takes_the_place_of_what_the_first_had_left() -> None:
    bench = Bench(partitions=1)
    for group in ("a", "b"):
        bench.join(f"c-{group}", group)
    bench.publish()
    held = {delivery.stamps.group: delivery for delivery in bench.take()}
    bench.settle(held["a"], Verb.REJECT)
    (letter,) = bench.queues.queue("dlq/q").entries
    remove(bench, "a")
    bench.join("c-a", "a", epoch=2)
    bench.wait("0s")
    bench.settle(bench.one(), Verb.REJECT)
    bench.queues.retry_dead_letters("dlq/q", [letter], bench.now_ms)
    bench.run()
    bench.take()
    remove(bench, "b", "a")
    retry(bench)
    bench.join("c-a", "a", epoch=3)
    delivery = bench.one()
    assert bench.settle(delivery, Verb.ACK) is Outcome.DONE, "its id means what it was given"
    of_a = [row for row in bench.rows.entries.values() if row.only_group == "a"]
    assert not of_a


def test_an_id_goes_with_the_message_that_it_means() -> None:
    identities = Identities(1)
    for sequence in (5, 9):
        identities.add(EntryRow(1, sequence, 0, 0, -1, None, 0, "a", "1-2"))
    identities.remove(5)
    assert identities.sequence_of("a", "1-2") == 9 and identities.sequence_of("b", "1-2") == 2
    assert not identities.is_for("a", 2) and identities.is_for("b", 2)
    assert identities.is_for("a", 9) and not identities.is_for("b", 9)
    identities.remove(9)
    assert identities.sequence_of("a", "1-2") == 2 and identities.is_for("a", 2)
    assert not identities.returned("a", "1-2")
