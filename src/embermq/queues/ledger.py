"""What there is in a queue, and which of its groups owe it. A message comes, is offered to the groups that it is for,
and goes with the last that owes it; all that is known of it comes and goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from embermq.model.queue_rows import EntryRow, GroupMark, MarkKey, MessageState, QueueWrites
from embermq.queues.dead_letter_quota import DeadLetterQuota
from embermq.queues.deadlines import Deadlines
from embermq.queues.entries import Entries
from embermq.queues.group import Group
from embermq.queues.identities import Identities
from embermq.queues.latency import LatencyWindow

_SETTLED = (MessageState.ACKED, MessageState.DLQ)


class QueueLedger:
    """Of one queue. `pending` are sequences whose entry is still to come, ascending."""

    def __init__(
        self,
        generation: int,
        writes: Callable[[], QueueWrites],
        pending: Iterable[int],
        latency: LatencyWindow,
        *,
        room: DeadLetterQuota | None = None,
    ) -> None:
        """`room` is for the ledger of a dead-letter queue: what comes and goes is counted there."""
        self._room = room
        self.entries = Entries()
        self.groups: dict[str, Group] = {}
        self.identities = Identities(generation)
        self.deadlines = Deadlines(self.entries, pending)
        self._generation = generation
        self._writes = writes
        self._latency = latency

    def put(self, row: EntryRow) -> None:
        """An entry whose record is in the log already."""
        self._writes().entries[self._generation, row.sequence] = row
        self.place(row, row.offset)

    def place(self, row: EntryRow, offset: int, marks: Mapping[MarkKey, GroupMark] | None = None) -> None:
        """An entry is there, to be called in the order of sequences. `marks` are what was stored of it."""
        sequence = row.sequence
        size = row.record_bytes
        self.entries.put(sequence, row.partition, offset, row.expires_ms, row.key, record_bytes=size)
        if self._room is not None:
            self._room.put(size)
        self.deadlines.add(sequence, row.expires_ms)
        self.identities.add(row)
        for group in self.groups.values():
            mark = marks.get((self._generation, group.name, sequence)) if marks else None
            self.offer(group, sequence, mark)

    def offer(self, group: Group, sequence: int, mark: GroupMark | None = None) -> None:
        """A group owes a message, unless it has settled it, or the message is for another."""
        if sequence < group.first_sequence:
            return
        if sequence >= group.unfilled_from:
            group.owed += 1  # its turn comes
            return
        if mark is not None and mark.state in _SETTLED:
            group.settled.add(sequence)
            return
        if not self.identities.is_for(group.name, sequence):
            group.settled.add(sequence)
            if not self.identities.only_group(sequence):
                self.mark(group, sequence, MessageState.ACKED)  # also when what came back for it is gone
            return
        self.entries.owe(sequence, 1)
        group.offer(sequence, mark)

    def mark(self, group: Group, sequence: int, state: MessageState) -> None:
        """Have it stored that a group has settled what others owe."""
        self._writes().marks[self._generation, group.name, sequence] = GroupMark(state)

    def pass_over(self, returned: EntryRow) -> None:
        """A message that came back to a group is there: the one of this id that was for all is not for it any more."""
        group = self.groups.get(returned.only_group)
        first = self.identities.sequence_of("", returned.origin_id)
        if group is not None and group.owes(returned.sequence) and group.owes(first):
            group.drop(first, even_held=True)
            self.mark(group, first, MessageState.ACKED)
            if not self.entries.owe(first, -1):
                self.remove(first)

    def was_settled(self, sequence: int) -> bool:
        """Whether a group that it was for has settled it."""
        only = self.identities.only_group(sequence)
        return any(sequence in each.settled and only in ("", name) for name, each in self.groups.items())

    def remove(self, sequence: int) -> None:
        """It goes, whoever owes it."""
        if self._room is not None:
            self._room.free(self.entries.record_bytes(sequence))
        self._writes().removed[self._generation, sequence] = self.entries.remove(sequence)
        self._latency.forget(sequence)
        for group in self.groups.values():
            if sequence in group.settled:
                group.settled.discard(sequence)
            elif sequence >= group.unfilled_from:
                group.owed -= 1
        self.identities.remove(sequence)
