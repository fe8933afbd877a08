"""What the log says of the room that dead letters have."""

from __future__ import annotations

import logging

from embermq.queues.dead_letter_quota import DeadLetterQuota

LOG = logging.getLogger("embermq")


class LetterNews:
    """Says once that there is little room, once that there is none, and once that there is again."""

    def __init__(self) -> None:
        self._level = 0
        """0 while there is room, 1 when there is little left, 2 when there is none."""

    def look(self, room: DeadLetterQuota) -> None:
        """Called every now and then."""
        level = room.is_alarming + room.is_full
        takes = f"dead letters take {room.used_bytes} of {room.limit_bytes} bytes (a tenth of log.disk_budget_bytes)"
        if level > self._level:
            what = "queues keep what would become one" + ("" if room.is_full else " when that is full")
            LOG.warning("%s; %s: put some back, or purge them", takes, what)
        elif level < self._level:
            LOG.info("%s", takes)
        self._level = level
