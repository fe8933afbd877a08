"""What a store makes of the writes of durable queues, in memory: rows, one transaction at a time."""

from __future__ import annotations

from msgspec.structs import replace

from embermq.model.queue_rows import (
    DelayedRow,
    EntryRow,
    GroupRow,
    Mark,
    MarkKey,
    QueueRow,
    QueueWrites,
    StoredQueue,
)


class QueueRows:
    """Tables by their keys."""

    def __init__(self) -> None:
        self.queues: dict[int, QueueRow] = {}
        self.groups: dict[tuple[int, str], GroupRow] = {}
        self.entries: dict[tuple[int, int], EntryRow] = {}
        self.delayed: dict[tuple[int, int], DelayedRow] = {}
        self.marks: dict[MarkKey, Mark] = {}
        self.dedup_ids: dict[tuple[int, str], int] = {}

    def apply(self, writes: QueueWrites, base_offset: int) -> None:
        """Record i of the tick has offset `base_offset` + i."""
        for group in writes.ended_groups:
            self.groups.pop(group, None)
            self.marks = {key: mark for key, mark in self.marks.items() if key[:2] != group}
        self.queues |= writes.queues
        self.groups |= writes.groups
        for key, row in writes.entries.items():
            self.entries[key] = (
                row if row.record < 0 else replace(row, offset=base_offset + row.record, record=-1)
            )
        for key, delayed in writes.delayed.items():
            self.delayed[key] = replace(delayed, offset=base_offset + delayed.record, record=-1)
        self.marks |= writes.marks
        self.dedup_ids |= writes.dedup_ids
        for gone in writes.removed:
            self.entries.pop(gone, None)
            self.marks = {key: mark for key, mark in self.marks.items() if (key[0], key[2]) != gone}
        for gone in writes.removed_delayed:
            self.delayed.pop(gone, None)

    def load(self) -> list[StoredQueue]:
        """Everything, as a start reads it."""
        return [
            StoredQueue(
                row,
                tuple(group for (queue, _), group in self.groups.items() if queue == generation),
                tuple(row for (queue, _), row in sorted(self.entries.items()) if queue == generation),
                tuple(row for (queue, _), row in sorted(self.delayed.items()) if queue == generation),
                {key: mark for key, mark in self.marks.items() if key[0] == generation},
                {name: until for (queue, name), until in self.dedup_ids.items() if queue == generation},
            )
            for generation, row in self.queues.items()
        ]
