"""How an operation waits for the commit of what it has decided."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from embermq.ports.errors import StoreError
from embermq.ports.tick_store import EVERYBODY
from embermq.sessions.tick import Tick

Answer = TypeVar("Answer")


class TickDriver(Protocol):
    """What drives ticks: `edge.tick_loop`."""

    def look_at_clock(self) -> int:
        """Set the tick's time and return it."""
        ...

    def wake(self) -> None:
        """Have a tick run soon."""
        ...


class Waiter(asyncio.Future[None]):
    """Done when it is called; who waits may have left by then."""

    def __call__(self) -> None:
        """The commit is durable."""
        if not self.done():
            self.set_result(None)


class StoreAnswer(asyncio.Future[Answer]):
    """What a store answers to a question, awaited by whoever may have left by then."""

    def __call__(self, answer: Answer | StoreError) -> None:
        if self.done():
            return
        if isinstance(answer, StoreError):
            self.set_exception(answer)
        else:
            self.set_result(answer)


class Durable:
    """Waits for the commit of what was decided in the present tick, however long it takes."""

    def __init__(self, tick: Tick, ticks: TickDriver) -> None:
        self._tick = tick
        self._ticks = ticks

    async def __call__(self) -> None:
        """Return when it is durable."""
        durable = Waiter(loop=asyncio.get_running_loop())
        self._tick.batch.when_stored(EVERYBODY, durable)
        self._ticks.wake()
        await durable
