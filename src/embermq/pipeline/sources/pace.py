"""When a source lets the next batch begin.

Not Spark's trigger: that would hold a backlog of many full batches to one batch an interval.
"""

import time
from collections.abc import Callable, Mapping

from msgspec import Struct

_COARSE_POLL_S = 0.25
_POLLS_AN_INTERVAL = 20


class Offer(Struct, frozen=True):
    """What a source could give now. `is_full`: no more would fit into one batch, so waiting gains nothing."""

    has_data: bool
    is_full: bool


class Pace:
    """A batch begins `interval_ms` after the one before, at once when a full one waits, never without data."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._interval_s = int(options.get("interval_ms", 0)) / 1000
        self._idle_wait_s = int(options.get("idle_wait_ms", 1_000)) / 1000
        poll_s = int(options.get("poll_ms", 10)) / 1000
        self._poll_s = max(poll_s, min(_COARSE_POLL_S, self._interval_s / _POLLS_AN_INTERVAL))
        self._due_s = float("-inf")

    def wait(self, look: Callable[[], Offer]) -> bool:
        """Whether a batch may begin; False after `idle_wait_ms`, so that Spark can look round."""
        deadline_s = time.monotonic() + self._idle_wait_s
        while True:
            now_s = time.monotonic()
            offer = look()
            if offer.has_data and (offer.is_full or now_s >= self._due_s):
                self._due_s = now_s + self._interval_s
                return True
            if now_s >= deadline_s:
                return False
            wake_s = deadline_s if not offer.has_data else max(now_s, min(deadline_s, self._due_s))
            time.sleep(min(self._poll_s, max(0.001, wake_s - now_s)))
