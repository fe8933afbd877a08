"""Waiting for a condition, with a deadline: what tests do instead of sleeping."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

POLL_S = 0.01
PAUSE_MAX_S = 0.3
REST = 4
"""A condition that asks somebody takes time from those whom it waits for: so many times as long nobody asks again."""
DEADLINE_S = 60.0
"""Of what takes a moment, and the least that is waited for anything: a busy machine takes a hundred times as long, and
waiting costs nothing when all is well. How quick something is, `measuring` judges."""


def wait_until(
    condition: Callable[[], object],
    deadline_s: float = DEADLINE_S,
    what: str = "",
    *,
    poll_s: float | None = None,
) -> None:
    """Return when `condition` is true; raises AssertionError, naming `what`, when it is not within `deadline_s`, or
    DEADLINE_S if that is longer. With `poll_s` it is asked so often, whatever that costs."""
    pause = threading.Event()
    for pause_s in _pauses(condition, deadline_s, what):
        pause.wait(poll_s or pause_s)


async def wait_for(
    condition: Callable[[], object], deadline_s: float = DEADLINE_S, what: str | Callable[[], str] = ""
) -> None:
    """The same on the event loop, which goes on meanwhile. `what` may say how it stands in the end."""
    for pause_s in _pauses(condition, deadline_s, what):
        await asyncio.sleep(pause_s)


async def wait_while_it_goes_on(
    condition: Callable[[], object],
    done: Callable[[], object],
    what: str = "",
    *,
    stands_s: float = DEADLINE_S,
) -> None:
    """Return when `condition` is true, however long that takes; raises AssertionError when what is `done` has not
    changed for `stands_s`. Both are asked on another thread."""
    await asyncio.to_thread(_wait_while_it_goes_on, condition, done, what, stands_s)


def _wait_while_it_goes_on(
    condition: Callable[[], object], done: Callable[[], object], what: str, stands_s: float
) -> None:
    while True:
        before = done()

        def goes_on(before: object = before) -> bool:
            return bool(condition()) or done() != before

        wait_until(goes_on, stands_s, f"{what}: it stands still at {before}")
        if condition():
            return


def _pauses(
    condition: Callable[[], object], deadline_s: float, what: str | Callable[[], str]
) -> Iterator[float]:
    """In seconds, until the condition is true."""
    deadline_s = max(deadline_s, DEADLINE_S)
    end_s = time.monotonic() + deadline_s
    while True:
        began_s = time.monotonic()
        if condition():
            return
        asked_s = time.monotonic()
        if asked_s > end_s:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {deadline_s} s: {told or condition}")
        yield min(PAUSE_MAX_S, max(POLL_S, REST * (asked_s - began_s)))
