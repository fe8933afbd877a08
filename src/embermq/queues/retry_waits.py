"""Which messages of a group wait for a retry, by the time at which each comes again [queues-24]."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

OVER_MAX = 1_000
"""Waits that ended in another way and are still in the heap, besides twice as many as there are messages."""


class RetryWaits:
    """`until_ms` tells until when a message waits now, 0 when it does not: what was settled meanwhile, or waits for
    another time, is passed over."""

    def __init__(self, until_ms: Callable[[int], int]) -> None:
        self._until_ms = until_ms
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Waits, those too that ended in another way."""
        return len(self._heap)

    def add(self, sequence: int, due_ms: int, messages: int) -> None:
        """A message waits. The group knows something of so many `messages`: no more than these can wait."""
        heappush(self._heap, (due_ms, sequence))
        if len(self._heap) > 2 * messages + OVER_MAX:
            self._heap = [each for each in self._heap if self._until_ms(each[1]) == each[0]]
            heapify(self._heap)

    def take(self, now_ms: int) -> int | None:
        """Take out the first whose time has come: the message, 0 when it does not wait for it any more. None when no
        time has come."""
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        due_ms, sequence = heappop(self._heap)
        return sequence if self._until_ms(sequence) == due_ms else 0

    def first_ms(self) -> int:
        """When the first comes, or sooner; 0 when nothing waits."""
        return self._heap[0][0] if self._heap else 0
