"""What happens in the broker now: live events for operators' pages, and the broker as a whole."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Protocol
from weakref import WeakSet

import msgspec

from embermq.admin.errors import OperationRefused
from embermq.admin.values import BrokerFigures, BrokerView

SUBSCRIBERS_MAX = 16
"""Each holds one of the connections of its listener."""
WAITING_MAX = 1_000
"""Events that wait for one subscriber; those that come then are left out, and counted for it."""
FIGURES, CLIENT, LEFT_OUT = "figures", "client", "left_out"
"""The names of events. LEFT_OUT tells how many were not kept for this subscriber."""


class _Subscriber:
    def __init__(self, wanted: frozenset[str]) -> None:
        self.wanted = wanted
        self.waiting: deque[bytes] = deque()
        self.left_out = 0
        self.news = asyncio.Event()


class EventStream:
    """Called on the event loop."""

    def __init__(self) -> None:
        self._subscribers: WeakSet[_Subscriber] = WeakSet()
        """Each is held by its iterator alone: one that nobody begins to read goes with it."""
        self._is_closed = False

    def wants(self, kind: str) -> bool:
        """Whether anybody does: else there is no need to make the event."""
        return len(self._subscribers) > 0 and any(kind in one.wanted for one in self._subscribers)

    def publish(self, kind: str, value: object) -> None:
        """Hand an event to all who want it; nobody is waited for."""
        data = b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(value))
        for one in self._subscribers:
            if kind not in one.wanted:
                continue
            if len(one.waiting) >= WAITING_MAX:
                one.left_out += 1
            else:
                one.waiting.append(data)
            one.news.set()

    def subscribe(self, *, figures: bool, clients: bool) -> AsyncIterator[bytes]:
        """Events from now on, in pieces for the wire, until the broker stops. Raises OperationRefused."""
        if len(self._subscribers) >= SUBSCRIBERS_MAX:
            raise OperationRefused(f"{SUBSCRIBERS_MAX} follow the events, as many as there may be")
        wanted = frozenset(kind for kind, is_wanted in ((FIGURES, figures), (CLIENT, clients)) if is_wanted)
        one = _Subscriber(wanted)
        self._subscribers.add(one)
        return self._pieces(one)

    async def _pieces(self, one: _Subscriber) -> AsyncIterator[bytes]:
        try:
            yield b": events of EmberMQ\n\n"
            while not self._is_closed:
                await one.news.wait()
                one.news.clear()
                pieces = list(one.waiting)
                one.waiting.clear()
                if one.left_out:
                    pieces.append(b'event: %s\ndata: {"events":%d}\n\n' % (LEFT_OUT.encode(), one.left_out))
                    one.left_out = 0
                if pieces:
                    yield b"".join(pieces)
        finally:
            self._subscribers.discard(one)

    def close(self) -> None:
        """The broker stops: who follows gets what waits, and the end."""
        self._is_closed = True
        for one in self._subscribers:
            one.news.set()


class BrokerDesk(Protocol):
    """Shows the broker as a whole. Called on the event loop; answers from memory."""

    @property
    def stream(self) -> EventStream:
        """Its events from now on, for who follows."""
        ...

    def overview(self) -> BrokerView:
        """What it is and how it does."""
        ...

    def history(self) -> Sequence[BrokerFigures]:
        """The last minutes, oldest first."""
        ...
