"""Turns of checks that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from embermq.access.authentication.checks import BUSY, Checks

DEADLINE_S = 30


class Bench:
    """One check at a time; the first holds the others until `go`. `order` has the names of those that ran."""

    def __init__(self, waiting_max: int) -> None:
        self.checks = Checks(1, waiting_max)
        self.order: list[str] = []
        self._free = threading.Event()
        self._first = self.asks("first", "elsewhere")

    def asks(self, name: str, place: str) -> asyncio.Task[object]:
        def check() -> str:
            self._free.wait(DEADLINE_S)
            self.order.append(name)
            return name

        return asyncio.create_task(self.checks.run(check, place=place))

    async def go(self) -> None:
        self._free.set()
        await self._first
        await asyncio.sleep(0)


def bench(waiting_max: int, scenario: Callable[[Bench], object]) -> None:
    async def run() -> None:
        made = Bench(waiting_max)
        await asyncio.sleep(0)
        try:
            await scenario(made)  # type: ignore[misc]
        finally:
            await made.go()
            made.checks.close()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_a_flood_from_one_place_lets_others_in_between() -> None:
    async def scenario(made: Bench) -> None:
        tasks = [made.asks(f"a{number}", "a") for number in range(4)]
        tasks += [made.asks("b0", "b"), made.asks("b1", "b"), made.asks("c0", "c")]
        await asyncio.sleep(0)
        await made.go()
        await asyncio.gather(*tasks)
        assert made.order == ["first", "a0", "b0", "c0", "a1", "b1", "a2", "a3"]
        assert made.checks.now == 0

    bench(10, scenario)


def test_when_there_is_no_room_the_place_with_the_most_makes_it() -> None:
    async def scenario(made: Bench) -> None:
        flood = [made.asks(f"a{number}", "a") for number in range(5)]
        await asyncio.sleep(0)
        assert await flood[4] is BUSY
        tasks = [made.asks("b0", "b"), made.asks("b1", "b")]
        await asyncio.sleep(0)
        assert [await flood[3], await flood[2]] == [BUSY, BUSY]
        assert await made.asks("b2", "b") is BUSY
        assert await made.asks("a5", "a") is BUSY
        await made.go()
        assert await asyncio.gather(*flood[:2], *tasks) == ["a0", "a1", "b0", "b1"]

    bench(4, scenario)


def test_a_turn_does_not_go_to_who_was_cancelled_a_moment_ago() -> None:
    async def scenario(made: Bench) -> None:
        gone, there = made.asks("gone", "a"), made.asks("there", "b")
        await asyncio.sleep(0)
        gone.cancel()
        made.checks._pass_on()
        assert await asyncio.gather(gone, return_exceptions=True)
        await made.go()
        assert await there == "there"
        assert made.checks.now == 0

    bench(4, scenario)


@pytest.mark.parametrize("given", [False, True])
def test_a_turn_that_is_not_taken_is_the_next_ones(given: bool) -> None:
    async def scenario(made: Bench) -> None:
        gone, there = made.asks("gone", "a"), made.asks("there", "b")
        await asyncio.sleep(0)
        if given:
            made.checks._pass_on()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert gone.cancelled()
        await made.go()
        assert await there == "there"
        assert "gone" not in made.order

    bench(4, scenario)
