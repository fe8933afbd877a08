"""What a store makes of the writes of durable queues, in memory: rows, one transaction at a time."""

from __future__ import annotations

from msgspec.structs import replace

from embermq.model.queue_rows import (
    DelayedRow,
    EntryRow,
    GroupMark,
    GroupRow,
    MarkKey,
    QueueSettingsRow,
    QueueWrites,
    StoredQueue,
)


class QueueRows:
    """Tables by their keys."""

    def __init__(self) -> None:
        self.queues: dict[int, QueueSettingsRow] = {}
        self.groups: dict[tuple[int, str], GroupRow] = {}
        self.entries: dict[tuple[int, int], EntryRow] = {}
        self.delayed: dict[tuple[int, int], DelayedRow] = {}
        self.marks: dict[MarkKey, GroupMark] = {}
        self.dedup_ids: dict[tuple[int, str], int] = {}
        self.bodies: dict[int, bytes] = {}
        self.next_generation = 1

    def apply(self, writes: QueueWrites, base_offset: int) -> None:
        """Record i of the tick has offset `base_offset` + i."""
        for queue in writes.ended_queues:
            self._end(queue)
        for group in writes.ended_groups:
            self.groups.pop(group, None)
            self.marks = {key: mark for key, mark in self.marks.items() if key[:2] != group}
        self.queues |= writes.queues
        self.next_generation = max([self.next_generation, *(queue + 1 for queue in writes.queues)])
        self.groups |= writes.groups
        for key, row in writes.entries.items():
            self.entries[key] = (
                row if row.record < 0 else replace(row, offset=base_offset + row.record, record=-1)
            )
        for key, delayed in writes.delayed.items():
            self.delayed[key] = (
                delayed
                if delayed.record < 0
                else replace(delayed, offset=base_offset + delayed.record, record=-1)
            )
        self.marks |= writes.marks
        self.dedup_ids |= writes.dedup_ids
        for gone in writes.removed:
            self.entries.pop(gone, None)
            self.marks = {key: mark for key, mark in self.marks.items() if (key[0], key[2]) != gone}
        for gone in writes.removed_delayed:
            self.delayed.pop(gone, None)
        self.bodies |= writes.bodies_at
        needed = self.offsets()
        self.bodies = {offset: body for offset, body in self.bodies.items() if offset in needed}

    def offsets(self) -> set[int]:
        """Of records that are needed."""
        return {row.offset for row in self.entries.values()} | {row.offset for row in self.delayed.values()}

    def _end(self, queue: int) -> None:
        self.queues.pop(queue, None)
        self.groups = {key: row for key, row in self.groups.items() if key[0] != queue}
        self.entries = {key: row for key, row in self.entries.items() if key[0] != queue}
        self.delayed = {key: row for key, row in self.delayed.items() if key[0] != queue}
        self.marks = {key: mark for key, mark in self.marks.items() if key[0] != queue}
        self.dedup_ids = {key: until for key, until in self.dedup_ids.items() if key[0] != queue}

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
