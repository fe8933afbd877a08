"""Threads for checks that take long, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from embermq.access.authentication.account_lookups import CANNOT_READ
from embermq.access.authentication.step import Deny
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.errors import StoreError

Result = TypeVar("Result")
BUSY = Deny(ReasonCode.SERVER_BUSY, "too many checks wait")


class Checks:
    """Runs `running_max` checks at a time and lets `waiting_max` wait.

    Those who wait get their turns by where they come from, one of each place after the other, so that a flood from one
    place keeps nobody else waiting for long. When there is no room left, the latest of the place with the most goes.
    """

    def __init__(self, running_max: int, waiting_max: int) -> None:
        self._threads = ThreadPoolExecutor(running_max, thread_name_prefix="check")
        self._free = running_max
        self._room = running_max + waiting_max
        self._waiting: OrderedDict[str, deque[asyncio.Future[bool]]] = OrderedDict()
        """By place, the one whose turn is next first. A future's result is whether its check may run."""
        self.now = 0
        """Under way or waiting."""

    async def run(self, check: Callable[[], Result], *, place: str = "") -> Result | Deny:
        """What `check` returns. Deny with SERVER_BUSY when too many wait, with SERVER_UNAVAILABLE when it raises
        StoreError."""
        if self.now >= self._room and not self._make_room(place):
            return BUSY
        self.now += 1
        try:
            if not await self._turn(place):
                return BUSY
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, check)
            finally:
                self._pass_on()
        except StoreError as error:
            return Deny(ReasonCode.SERVER_UNAVAILABLE, f"{CANNOT_READ}: {error}")
        finally:
            self.now -= 1

    async def _turn(self, place: str) -> bool:
        if self._free:
            self._free -= 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(place, deque()).append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(place, turn)
            elif turn.result():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """A check is over: the next place has its turn, and is the last one then."""
        while self._waiting:
            place, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[place] = turns
            if not turn.done():  # it may have been cancelled a moment ago
                turn.set_result(True)
                return
        self._free += 1

    def _make_room(self, place: str) -> bool:
        """Send the latest of the place with the most away, unless it would be of this one."""
        if not self._waiting:
            return False
        fullest = max(self._waiting, key=lambda other: len(self._waiting[other]))
        turns = self._waiting[fullest]
        if len(turns) <= len(self._waiting.get(place, ())) + 1:
            return False
        turn = turns.pop()
        if not turn.done():
            turn.set_result(False)
        return True

    def _forget(self, place: str, turn: asyncio.Future[bool]) -> None:
        turns = self._waiting.get(place)
        if turns is None or turn not in turns:
            return
        turns.remove(turn)
        if not turns:
            del self._waiting[place]

    def close(self) -> None:
        """Drop the checks that wait, and let those under way finish."""
        self._threads.shutdown(wait=True, cancel_futures=True)
