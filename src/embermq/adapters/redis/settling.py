"""Writes that a server has confirmed and may lose all the same: with appendfsync everysec the power takes what it has
not synced, a failover what the replica had not heard. They are kept for a while, to be sent again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from embermq.adapters.redis.wire import Operation


class Settling:
    """The operations that were confirmed less than `settle_s` ago, at most `bytes_max` of them; oldest first."""

    def __init__(self, settle_s: float, bytes_max: int) -> None:
        self._settle_s = settle_s
        self._bytes_max = bytes_max
        self._kept: deque[tuple[float, Operation]] = deque()
        self.kept_bytes = 0
        self.let_go = 0
        """Operations that had to go before their time."""

    def note(self, operation: Operation) -> None:
        """It is confirmed."""
        kept, now_s = self._kept, time.monotonic()
        kept.append((now_s, operation))
        self.kept_bytes += len(operation.packed)
        oldest_s = now_s - self._settle_s
        while kept and kept[0][0] < oldest_s:
            self.kept_bytes -= len(kept.popleft()[1].packed)
        while self.kept_bytes > self._bytes_max:
            self.kept_bytes -= len(kept.popleft()[1].packed)
            self.let_go += 1

    def forget(self, before_s: float) -> None:
        """What was confirmed before that time is safe."""
        kept = self._kept
        while kept and kept[0][0] < before_s:
            self.kept_bytes -= len(kept.popleft()[1].packed)

    def take(self, is_lost: Callable[[Operation], bool]) -> dict[str, list[Operation]]:
        """Those that a server may have lost, by key, in the order in which they were confirmed. A server that was
        away may have lost what is older by now: only `note` and `forget` look at the time."""
        taken: dict[str, list[Operation]] = {}
        stays: deque[tuple[float, Operation]] = deque()
        for entry in self._kept:
            operation = entry[1]
            if is_lost(operation):
                taken.setdefault(operation.key, []).append(operation)
                self.kept_bytes -= len(operation.packed)
            else:
                stays.append(entry)
        self._kept = stays
        return taken
