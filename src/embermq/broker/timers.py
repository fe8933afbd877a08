"""One timer wheel for keep-alive, expiry and will delay; time comes in as an argument."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Timers:
    """Calls that are due at a time (Unix milliseconds). A call that lost its reason must notice that itself."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ms(self) -> int:
        """When the next call is due; 0 when there is none."""
        return self._heap[0][0] if self._heap else 0

    def at(self, due_ms: int, call: Callable[[], None]) -> None:
        """Remember a call."""
        heappush(self._heap, (due_ms, next(self._order), call))

    def advance(self, now_ms: int) -> None:
        """Make every call that is due."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            heappop(heap)[2]()
