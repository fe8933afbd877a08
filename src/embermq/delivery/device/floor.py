"""The dispatcher's floor on its way to the store."""

from embermq.model.tick_writes import TickWrites

FLOOR_WRITE_MS = 50
"""It is written at most this often."""


class DispatcherFloor:
    """The offset below which every delivery is settled, stored or owed to nobody."""

    def __init__(self) -> None:
        self._known = -1
        self._unwritten = -1
        self._written_ms = 0

    def moves_to(self, offset: int) -> None:
        """It never falls, and the same again would be a commit that leads to the next one."""
        if offset > self._known:
            self._known = self._unwritten = offset

    def write(self, writes: TickWrites, now_ms: int) -> None:
        """Have it stored with this tick, when it has moved and its time has come."""
        if self._unwritten >= 0 and now_ms - self._written_ms >= FLOOR_WRITE_MS:
            writes.dispatcher_floor = self._unwritten
            self._unwritten = -1
            self._written_ms = now_ms

    @property
    def next_ms(self) -> int:
        """When `write` next has something to do; 0 for never."""
        return self._written_ms + FLOOR_WRITE_MS if self._unwritten >= 0 else 0
