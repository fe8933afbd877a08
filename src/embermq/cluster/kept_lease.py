"""When a node's lease is to be renewed, and how long it is certain. Times are seconds of one clock, which never stands
still while the process does.

| what happened | certain until |
|---|---|
| the lease was given, or renewed | 9 tenths of what was left, counted from when that was asked for |
| no answer | as before: the service may have heard it, or not |
| the answer is that it has ended | now |

The service counts from when it took the renewal, which is later than when that was asked for. The tenth is for clocks
that do not run at the same rate.
"""

from __future__ import annotations

CERTAIN = 0.9
RENEWALS = 3
"""So often a lease is renewed in its time, when the answers come."""
TRIES = 2
"""Questions that may stay unanswered in the time between two of those."""


class KeptLease:
    """Of a lease that was asked for at `asked_s` and given for `ttl_s`."""

    def __init__(self, asked_s: float, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self.certain_until_s = asked_s + ttl_s * CERTAIN
        self.due_s = asked_s + ttl_s / RENEWALS
        """When it is to be renewed next."""

    def is_certain(self, now_s: float) -> bool:
        """Whether nobody else can have what the lease is for."""
        return now_s < self.certain_until_s

    def timeout_s(self, now_s: float) -> float:
        """How long one renewal may be waited for."""
        return min(self._ttl_s / RENEWALS / TRIES, self.certain_until_s - now_s)

    def renewed(self, asked_s: float, left_s: float) -> None:
        """The answer to what was asked at that time. What is over stays over."""
        if left_s <= 0 or not self.is_certain(asked_s):
            self.certain_until_s = min(self.certain_until_s, asked_s)
            return
        self.certain_until_s = max(self.certain_until_s, asked_s + left_s * CERTAIN)
        self.due_s = asked_s + self._ttl_s / RENEWALS
