"""Dead letters that cannot go back, since what they came from is not there any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.queue_desk import DeskBench

from embermq.admin.errors import OperationRefused
from embermq.admin.queue_values import QUEUES_NAMED_MAX, PutBack, Retried
from embermq.queues.consumer import Newcomer
from embermq.queues.inspection import LetterFilter
from embermq.queues.names import Verb

ANY = LetterFilter()


def with_letters(count: int, groups_max: int = 100) -> DeskBench:
    """Rejected by the group g, which has no consumer any more."""
    bench = DeskBench(groups_max=groups_max)
    bench.join("c")
    bench.publish(count=count)
    for delivery in bench.take():
        bench.settle(delivery, Verb.REJECT)
    bench.leave("c")
    return bench


def with_shared_letters(*queues: str) -> DeskBench:
    """One dead letter of each queue in turn, in dlq/shared; their consumers are gone."""
    bench = DeskBench()
    for bench.name in dict.fromkeys(queues):
        bench.configure(dlq_config={"topic": "$queue/dlq/shared"})
        bench.join("c")
    for bench.name in queues:
        bench.publish()
        bench.settle(bench.one(), Verb.REJECT)
    for bench.name in dict.fromkeys(queues):
        bench.leave("c")
    return bench


def retried(messages: int, orphaned: int = 0, *missing: str, held: int = 0, crowded: int = 0) -> Retried:
    return Retried(
        messages=messages,
        held=held,
        orphaned=orphaned,
        missing_queues=missing,
        crowded=crowded,
        full_queues=("q",) if crowded else (),
    )


def put_back(count: int, **more: Any) -> PutBack:
    rest: dict[str, Any] = {
        "held": 0,
        "gone": 0,
        "orphaned": 0,
        "missing_queues": (),
        "crowded": 0,
        "full_queues": (),
    }
    return PutBack(put_back=count, **(rest | more))


@pytest.mark.promise("queues-35")
def test_dead_letters_make_no_queue_by_going_back() -> None:
    bench = with_letters(3)
    desk = bench.desk

    async def work() -> None:
        await desk.delete("q")
        letters = await desk.dead_letters("dlq/q", ANY, "", 100)
        ids = [letter.id for letter in letters]
        for letter_id in (ids[0], letters[0].message_id):
            with pytest.raises(
                OperationRefused, match="comes from queue q, which is not there any more; make it first"
            ):
                await desk.retry("dlq/q", letter_id)
        assert await desk.retry_all("dlq/q", ANY, 100) == retried(0, 3, "q")
        job = await desk.retry_slowly("dlq/q", ANY, 1_000)
        assert (job.running, job.matched, job.orphaned, job.missing_queues) == (False, 3, 3, ("q",))
        stay = put_back(0, orphaned=3, missing_queues=("q",))
        assert await desk.put_back("dlq/q", ids) == stay
        assert bench.queues.find("q") is None
        assert await desk.dead_letters("dlq/q", ANY, "", 100) == letters
        await desk.configure("q", {})
        back = put_back(3)
        assert await desk.put_back("dlq/q", ids) == back
        assert desk.stats("q").depth == 3

    asyncio.run(work())


@pytest.mark.promise("queues-34", "queues-35")
def test_what_can_go_back_goes_past_what_is_orphaned_in_one_transaction() -> None:
    bench = with_shared_letters("a", "b", "a", "z", "b", "b")
    desk = bench.desk

    async def work() -> None:
        letters = await desk.dead_letters("dlq/shared", ANY, "", 100)
        ids = [letter.id for letter in letters]
        for name in ("a", "z"):
            await desk.delete(name)
        commits, bench.failing = bench.commits, 1
        done = await desk.put_back("dlq/shared", [*ids[:5], "9-9"])
        assert done == put_back(2, gone=1, orphaned=3, missing_queues=("a", "z"))
        assert bench.commits == commits + 2, "one that was refused, and one"
        stored = [row for row in bench.rows.entries.values() if row.origin_id]
        assert {row.origin_id for row in stored} == {letters[1].message_id, letters[4].message_id}
        left = await desk.dead_letters("dlq/shared", ANY, "", 100)
        assert left == [letters[number] for number in (0, 2, 3, 5)]
        bench.queues.join("dlq/shared", "look", Newcomer("d", 1, 32), bench.now_ms)
        bench.run()
        assert await desk.retry_all("dlq/shared", ANY, 100) == retried(0, 3, "a", "z", held=1)
        assert await desk.retry_all("dlq/shared", LetterFilter(queue="z"), 100) == retried(0, 1, "z")

    asyncio.run(work())


@pytest.mark.promise("queues-35")
def test_orphaned_ones_are_in_nobodys_way() -> None:
    bench = with_shared_letters("a", "a", "b", "a", "b", "b")
    desk = bench.desk

    async def work() -> None:
        await desk.delete("a")
        assert await desk.retry_all("dlq/shared", ANY, 2) == retried(2, 3, "a"), "the limit is for what goes"
        job = await desk.retry_slowly("dlq/shared", ANY, 0.001)
        assert (job.matched, job.orphaned, job.running) == (4, 3, True), "no turn of a thousand seconds each"
        (task,) = desk._running.values()
        await asyncio.wait([task])
        ended = desk.retry_job("dlq/shared")
        assert (ended.retried, ended.orphaned, ended.running) == (1, 3, False)
        assert desk.stats("b").depth == 3

    asyncio.run(work())


@pytest.mark.promise("queues-35")
def test_few_of_very_many_missing_queues_are_named() -> None:
    names = [f"old/{number:03}" for number in range(QUEUES_NAMED_MAX + 20)]
    bench = with_shared_letters(*names)
    desk = bench.desk

    async def work() -> None:
        for name in names:
            await desk.delete(name)
        assert await desk.retry_all("dlq/shared", ANY, 1_000) == retried(
            0, len(names), *names[:QUEUES_NAMED_MAX]
        )

    asyncio.run(work())


@pytest.mark.promise("queues-35")
def test_dead_letters_make_no_group_past_the_limit() -> None:
    bench = with_letters(2, groups_max=1)
    desk = bench.desk

    async def work() -> None:
        await desk.remove_group("q", "g")
        bench.queues.open_group("q", "h", bench.now_ms)
        letters = await desk.dead_letters("q", ANY, "", 9)
        with pytest.raises(OperationRefused, match=r"group 'g' of queue q, .*groups_max is 1"):
            await desk.retry("q", letters[0].id)
        assert await desk.retry_all("q", ANY, 100) == retried(0, crowded=2)
        job = await desk.retry_slowly("q", ANY, 1_000)
        assert (job.running, job.matched, job.crowded, job.full_queues) == (False, 2, 2, ("q",))
        ids = [letter.id for letter in letters]
        assert await desk.put_back("q", ids) == put_back(0, crowded=2, full_queues=("q",))
        assert await desk.dead_letters("q", ANY, "", 9) == letters
        assert list(bench.queues.queue("q").groups) == ["h"]
        await desk.remove_group("q", "h")
        assert await desk.retry_all("q", ANY, 100) == retried(2)
        assert list(bench.queues.queue("q").groups) == ["g"]

    asyncio.run(work())


@pytest.mark.promise("queues-35")
def test_what_has_room_goes_back_past_what_has_none() -> None:
    """One group of two finds room: the letters of the first that come, and those of groups that are there."""
    bench = DeskBench(groups_max=2)
    for group in ("a", "b"):
        bench.join(f"c-{group}", group)
    bench.publish(count=3)
    for delivery in sorted(bench.take(), key=lambda each: (each.stamps.sequence, each.stamps.group)):
        bench.settle(delivery, Verb.REJECT)
    desk = bench.desk

    async def work() -> None:
        for group in ("a", "b"):
            bench.queues.leave("q", group, f"c-{group}", bench.now_ms)
            await desk.remove_group("q", group)
        bench.queues.open_group("q", "other", bench.now_ms)
        letters = await desk.dead_letters("q", ANY, "", 9)
        assert [letter.group for letter in letters] == ["a", "b"] * 3
        assert await desk.retry_all("q", ANY, 2) == retried(2, crowded=1), "the limit is for what goes"
        assert sorted(bench.queues.queue("q").groups) == ["a", "other"]
        left = await desk.dead_letters("q", ANY, "", 9)
        done = await desk.put_back("q", [letter.id for letter in left])
        assert done == put_back(1, crowded=3, full_queues=("q",))
        assert {letter.group for letter in await desk.dead_letters("q", ANY, "", 9)} == {"b"}
        await desk.remove_group("q", "other")
        assert await desk.retry_all("q", ANY, 100) == retried(3)
        assert sorted(bench.queues.queue("q").groups) == ["a", "b"]

    asyncio.run(work())


@pytest.mark.promise("queues-35")
def test_one_that_stays_since_it_is_held_takes_no_room() -> None:
    """The first is of the group a, and with a consumer of the dead letters: b has the room."""
    bench = DeskBench(groups_max=2)
    for group in ("a", "b"):
        bench.join(f"c-{group}", group)
    bench.publish()
    for delivery in sorted(bench.take(), key=lambda each: each.stamps.group):
        bench.settle(delivery, Verb.REJECT)
    desk = bench.desk

    async def work() -> None:
        for group in ("a", "b"):
            bench.queues.leave("q", group, f"c-{group}", bench.now_ms)
            await desk.remove_group("q", group)
        bench.queues.open_group("q", "other", bench.now_ms)
        bench.queues.join("dlq/q", "look", Newcomer("d", 1, 1), bench.now_ms)
        bench.run()
        (held,) = bench.take()
        assert held.stamps.dead_letter is not None and held.stamps.dead_letter.group == "a"
        assert await desk.retry_all("q", ANY, 100) == retried(1, held=1)
        assert sorted(bench.queues.queue("q").groups) == ["b", "other"]

    asyncio.run(work())


@pytest.mark.promise("queues-35")
def test_room_that_is_taken_on_the_way_is_not_taken_twice() -> None:
    bench = with_letters(3, groups_max=1)
    desk = bench.desk

    async def work() -> None:
        await desk.remove_group("q", "g")
        job = await desk.retry_slowly("q", ANY, 4)
        assert (job.matched, job.crowded) == (3, 0)
        if "g" in bench.queues.queue("q").groups:
            await desk.remove_group("q", "g")
        bench.queues.open_group("q", "h", bench.now_ms)
        (task,) = desk._running.values()
        await asyncio.wait([task])
        ended = desk.retry_job("q")
        assert not ended.running and ended.full_queues == ("q",)
        assert ended.crowded == 3 - ended.retried > 0
        assert list(bench.queues.queue("q").groups) == ["h"]

    asyncio.run(work())


@pytest.mark.promise("queues-35")
def test_a_retry_with_a_rate_makes_no_queue_that_is_deleted_on_the_way() -> None:
    bench = with_letters(3)
    desk = bench.desk

    async def work() -> None:
        job = await desk.retry_slowly("dlq/q", ANY, 4)
        assert (job.matched, job.orphaned) == (3, 0)
        await desk.delete("q")
        (task,) = desk._running.values()
        await asyncio.wait([task])
        ended = desk.retry_job("dlq/q")
        assert not ended.running and ended.missing_queues == ("q",)
        assert bench.queues.find("q") is None
        left = await desk.dead_letters("dlq/q", ANY, "", 100)
        assert ended.orphaned == len(left) == 3 - ended.retried > 0

    asyncio.run(work())
