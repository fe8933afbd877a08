"""When messages of a queue end by themselves, found without looking at all of them [queues-31] [queues-43].

All messages of a queue have the same time to live, so their order is the order of time and a cursor finds those that
are over. A message that ends sooner than one before it stands in a heap as well.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from embermq.queues.entries import Entries

NEVER_MS = 2**62
"""When a message ends that has no time to live."""
GONE_MAX = 1_000
"""Messages that ended in another way and are still in the heap, besides as many as there are others."""


class Deadlines:
    """Finds the entries of one queue that expire. `pending` are sequences whose entry is still to come, ascending."""

    def __init__(self, entries: Entries, pending: Iterable[int]) -> None:
        self._entries = entries
        self._pending = pending
        self._cursor = self._end = 0
        self._latest_ms = 0
        self._sooner: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Messages in the heap, those that are gone too."""
        return len(self._sooner)

    def add(self, sequence: int, expires_ms: int) -> None:
        """To be called in the order of sequences."""
        if expires_ms < self._latest_ms:
            heappush(self._sooner, (expires_ms, sequence))
            if len(self._sooner) > 2 * len(self._entries) + GONE_MAX:
                self._sooner = [each for each in self._sooner if each[1] in self._entries]
                heapify(self._sooner)
        else:
            self._latest_ms = expires_ms

    def ask_again(self, sequence: int, at_ms: int) -> None:
        """One that is over has to stay: it is told again then."""
        heappush(self._sooner, (at_ms, sequence))

    def take_over(self, now_ms: int, end: int, limit: int) -> list[int]:
        """Up to `limit` sequences below `end` whose time is over; each is told once. With more of them `next_due_ms` is
        in the past."""
        over: list[int] = []
        while self._sooner and self._sooner[0][0] <= now_ms and len(over) < limit:
            over.append(heappop(self._sooner)[1])
        end = self._end = min(next(iter(self._pending), end), end)
        while True:
            self._cursor = self._entries.first_from(self._cursor, end)
            if len(over) >= limit or self._cursor >= end or self._entries.expires_ms(self._cursor) > now_ms:
                return over
            over.append(self._cursor)
            self._cursor += 1

    def next_due_ms(self) -> int | None:
        """None when nothing ends by itself."""
        times = [self._sooner[0][0]] if self._sooner else []
        first = self._entries.first_from(self._cursor, self._end)  # that of the cursor may have gone since
        if first < self._end:
            times.append(self._entries.expires_ms(first))
        due_ms = min(times, default=NEVER_MS)
        return due_ms if due_ms < NEVER_MS else None
