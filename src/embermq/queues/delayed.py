"""Messages of a queue whose time has not come [queues-12]."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile

from embermq.model.queue_rows import DelayedRow

GONE_MAX = 1_000
"""Messages that were taken out and still have their time here, besides four times as many as there are others."""


class DelayedMessages:
    """Keeps delayed messages by the time at which they become visible."""

    def __init__(self) -> None:
        self.rows: dict[int, DelayedRow] = {}
        """By ticket, ascending."""
        self._times: list[tuple[int, int]] = []
        """A heap of (time, ticket), those too that were taken out."""

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, row: DelayedRow) -> None:
        """Take a delayed message whose record is durable."""
        self.rows[row.ticket] = row
        heappush(self._times, (row.visible_ms, row.ticket))

    def restore(self, rows: Iterable[DelayedRow]) -> None:
        self.rows = {row.ticket: row for row in rows}
        self._times = [(row.visible_ms, row.ticket) for row in self.rows.values()]
        heapify(self._times)

    def due(self, now_ms: int, limit: int) -> list[DelayedRow]:
        """Take out up to `limit` of those whose time has come, in the order of time. With more of them `first_ms` is in
        the past."""
        found: list[DelayedRow] = []
        for _ in range(limit):
            if not self._times or self._times[0][0] > now_ms:
                break
            row = self.rows.pop(heappop(self._times)[1], None)
            if row is not None:
                found.append(row)
        return found

    def after(self, ticket: int, limit: int) -> list[DelayedRow]:
        """Up to `limit` behind a ticket, in the order in which they came."""
        return list(islice((row for row in self.rows.values() if row.ticket > ticket), limit))

    def take_one(self, ticket: int) -> DelayedRow | None:
        """Take out one, whether its time has come or not; None when it is not here."""
        row = self.rows.pop(ticket, None)
        if row is not None:
            self._let_go_of_times(1)
        return row

    def take(self, end: int, limit: int) -> list[DelayedRow]:
        """Take out up to `limit` with tickets below `end`, whether their time has come or not."""
        taken = list(islice(takewhile(lambda row: row.ticket < end, self.rows.values()), limit))
        for row in taken:
            del self.rows[row.ticket]
        self._let_go_of_times(len(taken))
        return taken

    def _let_go_of_times(self, count: int) -> None:
        """So many were taken out: some of those that are gone leave the heap."""
        for _ in range(2 * count):
            if self._times and self._times[0][1] not in self.rows:
                heappop(self._times)
        if len(self._times) > 5 * len(self.rows) + GONE_MAX:
            self.restore(self.rows.values())

    def first_ms(self) -> int:
        """When the first comes, or sooner; 0 when there is none."""
        return self._times[0][0] if self.rows else 0
