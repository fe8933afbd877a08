"""When messages of a queue end by themselves, found without looking at all of them [queues-31] [queues-43].

All messages of a queue have the same time to live, so their order is the order of time and a cursor finds those that
are over. A message that ends sooner than one before it stands in a heap as well.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from embermq.queues.entries import Entries


class Deadlines:
    """Of the entries of one queue. `pending` are sequences whose entry is still to come, ascending."""

    def __init__(self, entries: Entries, pending: Iterable[int]) -> None:
        self._entries = entries
        self._pending = pending
        self._cursor = 0
        self._latest_ms = 0
        self._sooner: list[tuple[int, int]] = []

    def add(self, sequence: int, expires_ms: int) -> None:
        """To be called in the order of sequences."""
        if expires_ms < self._latest_ms:
            heappush(self._sooner, (expires_ms, sequence))
        else:
            self._latest_ms = expires_ms

    def take_over(self, now_ms: int, end: int) -> list[int]:
        """Sequences below `end` whose time is over; each is told once."""
        over: list[int] = []
        while self._sooner and self._sooner[0][0] <= now_ms:
            over.append(heappop(self._sooner)[1])
        end = min(next(iter(self._pending), end), end)
        while True:
            self._cursor = self._entries.first_from(self._cursor, end)
            if self._cursor >= end or self._entries.expires_ms(self._cursor) > now_ms:
                return over
            over.append(self._cursor)
            self._cursor += 1

    def next_due_ms(self) -> int | None:
        """None when nothing ends by itself."""
        times = [self._sooner[0][0]] if self._sooner else []
        if self._cursor in self._entries:
            times.append(self._entries.expires_ms(self._cursor))
        return min(times, default=None)
