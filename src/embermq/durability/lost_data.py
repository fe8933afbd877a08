"""Session data that has lost its newest part: which deliveries may be missing, and which are there once more.

A store of its own may come back older than it was: from a backup, from a replica that lagged, without its last writes.
It says up to which record it is complete; what it lacks from there to the dispatcher's floor is what the cursors, which
are kept with the log, do not call consumed [repositories 4].
"""

from embermq.model.session_cursor import SessionCursor
from embermq.model.session_writes import QueueRow
from embermq.ports.sessions import StoredState


class LostData:
    """What was read at start, held against the cursors."""

    def __init__(self, stored: StoredState, cursors: dict[int, SessionCursor]) -> None:
        self.floor = stored.dispatcher_floor
        self._complete_to: dict[int, int] = {}
        if stored.complete_to is None or stored.complete_to < self.floor:
            self._complete_to = {
                entry.row.generation: entry.complete_to
                for entry in stored.sessions
                if entry.complete_to is not None and entry.complete_to < self.floor
            }
        self._cursors = cursors

    def __bool__(self) -> bool:
        """Whether any session's data is behind the floor at all."""
        return bool(self._complete_to)

    @property
    def start(self) -> int:
        """The first record that may be missing in some session; the floor when there is none."""
        starts = [
            max(complete_to, self._cursors[generation].next_offset)
            for generation, complete_to in self._complete_to.items()
            if generation in self._cursors
        ]
        return min([*starts, self.floor])

    def may_lack(self, generation: int, offset: int, *, shared: bool) -> bool:
        """Whether a session that is owed a record below the floor, and does not know it, has lost it."""
        complete_to, cursor = self._complete_to.get(generation), self._cursors.get(generation)
        if complete_to is None or cursor is None:
            return False
        return offset >= complete_to and not cursor.has_consumed(offset, shared=shared)

    def is_consumed(self, row: QueueRow) -> bool:
        """Whether a stored delivery is from before the loss and was consumed since."""
        if not 0 <= row.offset < self.floor or row.generation not in self._complete_to:
            return False
        cursor = self._cursors.get(row.generation)
        return cursor is None or cursor.has_consumed(row.offset, shared=row.flags >> 3 > 0)
