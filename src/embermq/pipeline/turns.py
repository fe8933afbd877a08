"""One query at a time starts its workers, dispatch first.

A Python worker has ten seconds to connect to the JVM, a fixed number in Spark. Those of all queries together, on a busy
machine, are all late: then all queries fail, wait equally long, and fail together again.
"""

import threading
import time
from collections.abc import Callable, Sequence

TURN_S = 60.0
"""Who has not begun after so long keeps nobody waiting any more."""
_LOOK_S = 0.1


class Turns:
    """Lets queries start in turns. All are expected at first, so that the first in rank is the first, whoever comes
    first."""

    def __init__(self, ranked: Sequence[str], now_s: Callable[[], float] = time.monotonic) -> None:
        self._ranked = tuple(ranked)
        self._now_s = now_s
        self._expected = set(ranked)
        self._holder = ""
        self._until_s = 0.0
        self._changed = threading.Condition()

    def take(self, name: str, stopping: threading.Event) -> None:
        """Wait for the turn; returns without it when `stopping` is set."""
        with self._changed:
            self._expected.add(name)
            while not (stopping.is_set() or self._is_next(name)):
                self._changed.wait(_LOOK_S)
            self._expected.discard(name)
            self._holder, self._until_s = name, self._now_s() + TURN_S

    def leave(self, name: str) -> None:
        """Have begun, or given up for now: the next one's turn. May be repeated."""
        with self._changed:
            self._expected.discard(name)
            if self._holder == name:
                self._holder = ""
            self._changed.notify_all()

    def _is_next(self, name: str) -> bool:
        if self._holder and self._now_s() < self._until_s:
            return False
        return name == next(one for one in self._ranked if one in self._expected)
