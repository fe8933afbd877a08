"""Threads for checks that take long, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from embermq.authentication.step import Deny
from embermq.ports.errors import StoreError
from embermq.protocol.reason_codes import ReasonCode

Result = TypeVar("Result")
BUSY = Deny(ReasonCode.SERVER_BUSY, "too many checks wait")


class Checks:
    """Runs `running_max` checks at a time and lets `waiting_max` wait."""

    def __init__(self, running_max: int, waiting_max: int) -> None:
        self._threads = ThreadPoolExecutor(running_max, thread_name_prefix="check")
        self._room = running_max + waiting_max
        self.now = 0
        """Under way or waiting."""

    async def run(self, check: Callable[[], Result]) -> Result | Deny:
        """What `check` returns. Deny with SERVER_BUSY when too many wait, with SERVER_UNAVAILABLE when it raises
        StoreError."""
        if self.now >= self._room:
            return BUSY
        self.now += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, check)
        except StoreError as error:
            return Deny(ReasonCode.SERVER_UNAVAILABLE, f"the accounts cannot be read: {error}")
        finally:
            self.now -= 1

    def close(self) -> None:
        """Drop the checks that wait, and let those under way finish."""
        self._threads.shutdown(wait=True, cancel_futures=True)
