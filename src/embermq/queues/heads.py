"""Which message goes when a queue is full and `overflow` is drop-head [queues-31]."""

from collections.abc import Mapping

from embermq.queues.entries import Entries
from embermq.queues.group import Group
from embermq.queues.lanes import LOOKED_AT_MAX


class Heads:
    """Finds the oldest messages of one queue that no consumer holds, one after another: what was passed over, since
    it was held then, has its turn again when nothing is left behind it."""

    def __init__(self, entries: Entries, groups: Mapping[str, Group]) -> None:
        self._entries = entries
        self._groups = groups
        self._next = 1

    def find(self, end: int) -> int:
        """The oldest message below `end` that the slowest group owes and nobody holds; 0 when there is none."""
        slowest = max(self._groups.values(), key=lambda group: group.owed, default=None)
        began = self._next
        for _ in range(LOOKED_AT_MAX):
            sequence = self._entries.first_from(self._next, end)
            if sequence >= end:
                if began == 1:
                    return 0
                began = self._next = 1
                continue
            self._next = sequence + 1
            is_owed = slowest is None or slowest.owes(sequence)
            if is_owed and not any(group.holds(sequence) for group in self._groups.values()):
                return sequence
        return 0
