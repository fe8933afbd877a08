"""Dead letters that cannot go back, since what they came from is not there any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.queue_desk import DeskBench

from embermq.admin.queue_service import PutBack, QueueRefused
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


@pytest.mark.promise("queues-35")
def test_dead_letters_make_no_queue_by_going_back() -> None:
    bench = with_letters(3)
    desk = bench.desk

    async def work() -> None:
        await desk.delete("q")
        letters = await desk.dead_letters("dlq/q", ANY, "", 100)
        ids = [letter.id for letter in letters]
        ways: list[Callable[[], Awaitable[object]]] = [
            lambda: desk.retry("dlq/q", ids[0]),
            lambda: desk.retry_all("dlq/q", ANY, 100),
            lambda: desk.retry_slowly("dlq/q", ANY, 1_000),
            lambda: desk.put_back("dlq/q", ids),
        ]
        for way in ways:
            with pytest.raises(QueueRefused, match="come from queue q, which is not there any more; make it"):
                await way()
        assert bench.queues.find("q") is None and desk.retry_job("dlq/q") is None
        assert await desk.dead_letters("dlq/q", ANY, "", 100) == letters
        await desk.configure("q", {})
        assert await desk.put_back("dlq/q", ids) == PutBack(put_back=3, held=0, gone=0)
        assert desk.stats("q").depth == 3

    asyncio.run(work())


@pytest.mark.promise("queues-35")
def test_dead_letters_make_no_group_past_the_limit() -> None:
    bench = with_letters(2, groups_max=1)
    desk = bench.desk

    async def work() -> None:
        await desk.remove_group("q", "g")
        bench.queues.open_group("q", "h", bench.now_ms)
        with pytest.raises(QueueRefused, match=r"group 'g' of queue q, .*groups_max is 1"):
            await desk.retry_all("q", ANY, 100)
        assert list(bench.queues.queue("q").groups) == ["h"]
        await desk.remove_group("q", "h")
        assert await desk.retry_all("q", ANY, 100) == 2
        assert list(bench.queues.queue("q").groups) == ["g"]

    asyncio.run(work())


def test_a_retry_with_a_rate_ends_with_the_queue_that_it_fills(caplog: pytest.LogCaptureFixture) -> None:
    bench = with_letters(3)
    desk = bench.desk

    async def work() -> None:
        job = await desk.retry_slowly("dlq/q", ANY, 20)
        assert job.matched == 3
        await desk.delete("q")
        (task,) = desk._running.values()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        ended = desk.retry_job("dlq/q")
        assert ended is not None and not ended.running
        assert "dlq/q ended: dead letters in dlq/q come from queue q, which is not there" in caplog.text
        assert bench.queues.find("q") is None and await desk.dead_letters("dlq/q", ANY, "", 100)

    asyncio.run(work())
