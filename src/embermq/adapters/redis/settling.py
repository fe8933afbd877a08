"""Writes that a server has confirmed and may lose all the same: with appendfsync everysec the power takes what it has
not synced, a failover what the replica had not heard. They are kept for a while, to be sent again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from embermq.adapters.redis.wire import Operation
from embermq.ports.store_node import Node


class Settling:
    """What servers confirmed less than `settle_s` before they last gave a sign of life, at most `bytes_max` of it.

    Each server has a window of its own: one that is stuck, or dead and not replaced yet, may lose what it confirmed
    long ago by the clock, however busy the others are.
    """

    def __init__(self, settle_s: float, bytes_max: int) -> None:
        self.settle_s = settle_s
        self._bytes_max = bytes_max
        self._windows: dict[Node, ConfirmedWrites] = {}
        self.kept_bytes = 0
        self.let_go = 0
        """Operations that had to go before their time."""

    def window(self, node: Node) -> ConfirmedWrites:
        """That of one server, over all connections to it."""
        return self._windows.setdefault(node, ConfirmedWrites(self))

    def keep(self, size: int) -> None:
        """So many bytes more, wherever; the oldest go when that is too much."""
        self.kept_bytes += size
        while self.kept_bytes > self._bytes_max:
            oldest = min(
                (window for window in self._windows.values() if window.kept),
                key=lambda window: window.kept[0][0],
            )
            self.kept_bytes -= len(oldest.kept.popleft()[1].packed)
            self.let_go += 1

    def forget(self, before_s: float) -> None:
        """What any server confirmed before that time is safe."""
        for window in self._windows.values():
            window.drop(before_s)

    def take(self, is_lost: Callable[[Operation], bool]) -> dict[str, list[Operation]]:
        """Those that a server may have lost, by key, in the order in which they were confirmed."""
        found: list[tuple[float, Operation]] = []
        for window in self._windows.values():
            found += window.take(is_lost)
        found.sort(key=lambda entry: entry[0])
        taken: dict[str, list[Operation]] = {}
        for _, operation in found:
            taken.setdefault(operation.key, []).append(operation)
        return taken


class ConfirmedWrites:
    """Writes that one server has confirmed; oldest first, with the time of the confirmation (time.monotonic)."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling
        self.kept: deque[tuple[float, Operation]] = deque()

    def note(self, operation: Operation) -> None:
        """It is confirmed now."""
        self.kept.append((time.monotonic(), operation))
        self._settling.keep(len(operation.packed))

    def lived(self, at_s: float) -> None:
        """The server was alive then: it has answered what was sent at that time."""
        self.drop(at_s - self._settling.settle_s)

    def drop(self, before_s: float) -> None:
        """What was confirmed before that time is safe."""
        kept = self.kept
        while kept and kept[0][0] < before_s:
            self._settling.kept_bytes -= len(kept.popleft()[1].packed)

    def take(self, is_lost: Callable[[Operation], bool]) -> list[tuple[float, Operation]]:
        """Part with those that may be lost."""
        taken = [entry for entry in self.kept if is_lost(entry[1])]
        if taken:
            self.kept = deque(entry for entry in self.kept if not is_lost(entry[1]))
            self._settling.kept_bytes -= sum(len(operation.packed) for _, operation in taken)
        return taken
