"""One timer wheel for keep-alive, expiry and will delay; time comes in as an argument."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from msgspec import Struct

CANCELLED_MAX = 64
"""Cancelled calls that may stay in the heap when they are fewer than the others."""


class Timer(Struct, eq=False):
    """A call that is to be made; `call` is None when it was made or cancelled."""

    call: Callable[[], None] | None


class Timers:
    """Calls that are due at a time (Unix milliseconds). A cancelled call lets go at once of what it would touch."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = count()
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    @property
    def next_ms(self) -> int:
        """When the next call is due; 0 when there is none."""
        heap = self._heap
        while heap and heap[0][2].call is None:
            heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else 0

    def at(self, due_ms: int, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        heappush(self._heap, (due_ms, next(self._order), timer))
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Forget a call; nothing happens when it was made already."""
        if timer is None or timer.call is None:
            return
        timer.call = None
        self._cancelled += 1
        if self._cancelled > CANCELLED_MAX and 2 * self._cancelled > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapify(self._heap)
            self._cancelled = 0

    def advance(self, now_ms: int) -> None:
        """Make every call that is due."""
        while self._heap and self._heap[0][0] <= now_ms:
            timer = heappop(self._heap)[2]
            call, timer.call = timer.call, None
            if call is None:
                self._cancelled -= 1
            else:
                call()
