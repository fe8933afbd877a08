"""Subscribers that go away and return while the load goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from embermq_bench.errors import BenchError
from embermq_bench.subscriber import Subscriber


class Absences:
    """Keeps `away` of the subscribers away: in turn one leaves, and each is back after `away_s`.

    Departures are spread evenly, so `away` are gone from `away_s` after the start on, and never all leave or return
    at one moment. Every other one is without a DISCONNECT and takes with it what was not written yet.
    """

    def __init__(
        self,
        subscribers: Sequence[Subscriber],
        away: int,
        *,
        away_s: float,
        expiry_s: int,
        on_failure: Callable[[BenchError], None],
    ) -> None:
        self._subscribers = subscribers
        self._away_s = away_s
        self._step_s = away_s / away
        self._expiry_s = expiry_s
        self._on_failure = on_failure
        self._over = asyncio.Event()
        self._absent: dict[Subscriber, asyncio.Task[None]] = {}
        self._rotation: asyncio.Task[None] | None = None
        self.returns = 0
        """Times that a subscriber has come back."""

    def start(self) -> None:
        """The first one leaves now."""
        self._rotation = asyncio.ensure_future(self._rotate())

    async def end(self) -> None:
        """Nobody leaves any more, and those who are away return now."""
        self._over.set()
        if self._rotation is not None:
            await self._rotation
        await asyncio.gather(*self._absent.values())

    def abort(self) -> None:
        """Stop where we are."""
        for task in (self._rotation, *self._absent.values()):
            if task is not None:
                task.cancel()

    async def _rotate(self) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        for turn in count():
            await self._pause(began + turn * self._step_s - clock())
            if self._over.is_set():
                return
            subscriber = self._subscribers[turn % len(self._subscribers)]
            if (
                subscriber not in self._absent
            ):  # else the broker is so slow that it is not back from the last time
                absence = self._absence(subscriber, cut_off=turn % 2 == 1)
                self._absent[subscriber] = asyncio.ensure_future(absence)

    async def _absence(self, subscriber: Subscriber, *, cut_off: bool) -> None:
        try:
            await subscriber.leave(cut_off=cut_off)
            await self._pause(self._away_s)
            await subscriber.come_back(expiry_s=self._expiry_s)
            self.returns += 1
        except BenchError as error:
            self._on_failure(error)
        finally:
            del self._absent[subscriber]

    async def _pause(self, duration_s: float) -> None:
        """So long, or until all is over."""
        over = asyncio.ensure_future(self._over.wait())
        await asyncio.wait((over,), timeout=max(0.0, duration_s))
        over.cancel()
