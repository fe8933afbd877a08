"""What few messages of a queue have, and which message an id means [queues-21] [queues-35].

A dead letter that came back is another entry with the id of the first one, for one group. So an id can stand for
several entries, and means one of them to each group: the one that came back for it, else the one for all.
"""

from __future__ import annotations

from msgspec import Struct

from embermq.model.queue_rows import DeadLetter, EntryRow
from embermq.queues.entries import QueueEntry
from embermq.queues.settling import message_id_of, sequence_of


class _Particulars(Struct, frozen=True):
    """Of one message."""

    only_group: str
    origin_id: str
    dead_letter: DeadLetter | None


class Identities:
    """Maps message ids of one queue to its messages."""

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._particulars: dict[int, _Particulars] = {}
        self._returned: dict[tuple[str, str], int] = {}
        """By group, "" for all, and id."""

    def add(self, row: EntryRow) -> None:
        if row.only_group or row.origin_id or row.dead_letter is not None:
            self._particulars[row.sequence] = _Particulars(row.only_group, row.origin_id, row.dead_letter)
            if row.origin_id:
                self._returned[row.only_group, row.origin_id] = row.sequence

    def remove(self, sequence: int) -> None:
        particulars = self._particulars.pop(sequence, None)
        if particulars is not None:
            key = (particulars.only_group, particulars.origin_id)
            if self._returned.get(key) == sequence:
                del self._returned[key]

    def message_id(self, sequence: int) -> str:
        """Its own, or the one that it came back with."""
        particulars = self._particulars.get(sequence)
        return (particulars.origin_id if particulars else "") or message_id_of(self._generation, sequence)

    def sequence_of(self, group: str, message_id: str) -> int:
        """What a group knows by an id; -1 when the id is none of this queue's."""
        if self._returned:
            found = self._returned.get((group, message_id)) or self._returned.get(("", message_id))
            if found:
                return found
        return sequence_of(self._generation, message_id)

    def returned(self, group: str, message_id: str) -> int:
        """What came back for this group alone; 0 when nothing did."""
        return self._returned.get((group, message_id), 0)

    def row(self, sequence: int, entry: QueueEntry) -> EntryRow:
        """What is stored of a message that is there."""
        found = self._particulars.get(sequence) or _Particulars("", "", None)
        return EntryRow(
            self._generation,
            sequence,
            entry.partition,
            entry.offset,
            -1,
            entry.key,
            entry.expires_ms,
            found.only_group,
            found.origin_id,
            found.dead_letter,
            entry.record_bytes,
        )

    def dead_letter(self, sequence: int) -> DeadLetter | None:
        """None when it is no dead letter."""
        particulars = self._particulars.get(sequence)
        return None if particulars is None else particulars.dead_letter

    def only_group(self, sequence: int) -> str:
        """The one group it is for; "" for all."""
        particulars = self._particulars.get(sequence)
        return "" if particulars is None else particulars.only_group

    def is_for(self, group: str, sequence: int) -> bool:
        """Whether the group of this name gets it."""
        particulars = self._particulars.get(sequence)
        if particulars is not None and particulars.only_group:
            return particulars.only_group == group
        return not self._returned or (group, self.message_id(sequence)) not in self._returned
