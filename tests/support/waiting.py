"""Waiting for a condition, with a deadline: what tests do instead of sleeping."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

POLL_S = 0.01


def wait_until(
    condition: Callable[[], object], deadline_s: float = 10.0, what: str = "", *, poll_s: float = POLL_S
) -> None:
    """Return when `condition` is true; raises AssertionError, naming `what`, when it is not within `deadline_s`."""
    end_s = time.monotonic() + deadline_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {deadline_s} s: {what or condition}")
        pause.wait(poll_s)


async def wait_for(condition: Callable[[], object], deadline_s: float = 10.0, what: str = "") -> None:
    """The same on the event loop, which goes on meanwhile."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {deadline_s} s: {what or condition}")
        await asyncio.sleep(POLL_S)
