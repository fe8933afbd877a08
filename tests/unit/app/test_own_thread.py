"""Slow calls on threads that nobody waits for at the end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from embermq.app.own_thread import on_own_thread


def test_the_outcome_of_a_slow_call_comes_back() -> None:
    async def ask() -> None:
        assert await on_own_thread(lambda: 6 * 7, "slow") == 42
        with pytest.raises(ZeroDivisionError):
            await on_own_thread(lambda: 1 // 0, "slow")

    asyncio.run(ask())


def test_a_call_that_hangs_does_not_keep_the_loop_from_ending() -> None:
    go_on, left = threading.Event(), threading.Event()

    def hang() -> None:
        go_on.wait()
        left.set()

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(on_own_thread(hang, "slow"), 0.05)

    asyncio.run(ask())
    assert not left.is_set()
    go_on.set()
    assert left.wait(30)
