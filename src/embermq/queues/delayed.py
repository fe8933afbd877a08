"""Messages of a queue whose time has not come [queues-12]."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

from embermq.model.queue_rows import DelayedRow


class DelayedMessages:
    """By the time at which consumers may see them."""

    def __init__(self) -> None:
        self.rows: dict[int, DelayedRow] = {}
        """By ticket."""
        self._times: list[tuple[int, int]] = []
        """A heap of (time, ticket)."""

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, row: DelayedRow) -> None:
        """Its record is durable."""
        self.rows[row.ticket] = row
        heappush(self._times, (row.visible_ms, row.ticket))

    def restore(self, rows: Iterable[DelayedRow]) -> None:
        """What was stored."""
        self.rows = {row.ticket: row for row in rows}
        self._times = [(row.visible_ms, row.ticket) for row in self.rows.values()]
        heapify(self._times)

    def due(self, now_ms: int) -> Iterator[DelayedRow]:
        """Take out those whose time has come, in the order of time."""
        while self._times and self._times[0][0] <= now_ms:
            yield self.rows.pop(heappop(self._times)[1])

    def take(self, end: int, limit: int) -> list[DelayedRow]:
        """Take out up to `limit` with tickets below `end`, whether their time has come or not."""
        taken = list(islice((row for row in self.rows.values() if row.ticket < end), limit))
        if taken:
            for row in taken:
                del self.rows[row.ticket]
            self._times = [(row.visible_ms, row.ticket) for row in self.rows.values()]
            heapify(self._times)
        return taken

    def first_ms(self) -> int:
        """When the first comes; 0 when there is none."""
        return self._times[0][0] if self._times else 0
