"""The room that dead letters of all queues have together, in bytes: they end by no time of their own, so they must not
fill the disk either [queues-34]."""

from __future__ import annotations

LETTER_BYTES = 512
"""What a dead letter takes besides its record, at most about: its row, and the index over that."""
ALARMING_SHARE = 0.8
"""From this share on operators are to be told."""


class DeadLetterQuota:
    """Counts what is there, and what is on its way from a queue to that of its dead letters."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.is_full = False
        """One was turned away, and none has gone since."""

    def reserve(self, record_bytes: int) -> bool:
        """A dead letter is to come; False when there is no room for it, and it stays where it is."""
        if self.used_bytes + record_bytes + LETTER_BYTES > self.limit_bytes:
            self.is_full = True
            return False
        self.put(record_bytes)
        return True

    def put(self, record_bytes: int) -> None:
        """A dead letter is there, as one that is read at start."""
        self.used_bytes += record_bytes + LETTER_BYTES

    def free(self, record_bytes: int) -> None:
        """One is gone, or what was reserved for it is not needed."""
        self.used_bytes -= record_bytes + LETTER_BYTES
        self.is_full = False

    @property
    def is_alarming(self) -> bool:
        """Whether there is little room left."""
        return self.is_full or self.used_bytes >= self.limit_bytes * ALARMING_SHARE
