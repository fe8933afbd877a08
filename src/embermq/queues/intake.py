"""How messages come to a queue: each gets a number, a partition and a deadline; that of a publish waits then until its
record is durable, and a delayed one until its time has come.
"""

from __future__ import annotations

from collections.abc import Callable

from embermq.model.queue_rows import (
    DeadLetter,
    DelayedRow,
    EntryRow,
    QueueSettingsRow,
    QueueWrites,
    StoredQueue,
)
from embermq.queues.deadlines import NEVER_MS
from embermq.queues.dedup import DedupWindow
from embermq.queues.delayed import DelayedMessages
from embermq.queues.latency import Arrivals, LatencyWindow
from embermq.queues.partitioner import partition_of_key
from embermq.queues.publication import Publication
from embermq.queues.settings import GroupSettings, QueueSettings, format_settings
from embermq.queues.values import Acceptance, Fate, Pending

DEDUP_IDS_MAX = 100_000
"""Ids that one queue remembers, some 10 MB; past it the oldest are forgotten."""
SEQUENCES_RESERVED = 10_000
"""Numbers that the stored row of a queue is ahead: a start leaves out what was not used of them."""


class Intake:
    """Adds messages to one queue. Whether there is room is decided before."""

    def __init__(
        self,
        generation: int,
        settings: QueueSettings,
        timing: GroupSettings,
        writes: Callable[[], QueueWrites],
    ) -> None:
        self.settings = settings
        self.is_paused = False
        """Nothing is handed out; see `Queue.pause`."""
        self.next_sequence = 1
        """The number that the next message gets."""
        self.pending: dict[int, Pending] = {}
        """By number, ascending: publishes whose record is not durable yet."""
        self.delayed = DelayedMessages()
        self.dedup = DedupWindow(timing.dedup_window_ms, DEDUP_IDS_MAX)
        self.latency = LatencyWindow()
        self.arrivals = Arrivals()
        self._generation = generation
        self._writes = writes
        self._reserved = 1
        self._keyless = 0

    def accept(
        self, publication: Publication, expires_ms: int, record: int, now_ms: int, *, record_bytes: int = 0
    ) -> Acceptance:
        """See `Queue.accept`."""
        ticket, writes = self._take_number(), self._writes()
        key, visible_ms, dedup_id = publication.key, publication.visible_ms, publication.dedup_id
        row: EntryRow | DelayedRow
        if visible_ms > now_ms:
            fate = Fate.DELAYED
            row = DelayedRow(self._generation, ticket, -1, record, key, visible_ms, expires_ms, record_bytes)
            writes.delayed[self._generation, ticket] = row
        else:
            fate = Fate.ENQUEUED
            self.latency.arrived(ticket, now_ms)
            self.arrivals.mark(ticket, now_ms)
            row = EntryRow(
                self._generation,
                ticket,
                self._partition(key),
                -1,
                record,
                key,
                self._deadline(now_ms, expires_ms),
                record_bytes=record_bytes,
            )
            writes.entries[self._generation, ticket] = row
        self.pending[ticket] = Pending(row, dedup_id)
        if dedup_id is not None:
            writes.dedup_ids[self._generation, dedup_id] = self.dedup.add(dedup_id, now_ms)
            writes.dedup_of[self._generation, ticket] = dedup_id
        return Acceptance(fate, ticket)

    def withdraw(self, ticket: int) -> None:
        """Its tick was refused: nothing of it is stored."""
        self.latency.forget(ticket)
        dedup_id = self.pending.pop(ticket).dedup_id
        if dedup_id is not None:
            self.dedup.forget(dedup_id)

    def new_row(
        self,
        offset: int,
        key: str | None,
        now_ms: int,
        *,
        record_bytes: int,
        expires_ms: int = 0,
        dead_letter: DeadLetter | None = None,
    ) -> EntryRow:
        """An entry at the tail, whose record is in the log already; `expires_ms` as for `Queue.accept`."""
        number, deadline = self._take_number(), self._deadline(now_ms, expires_ms)
        self.latency.arrived(number, now_ms)
        self.arrivals.mark(number, now_ms)
        return EntryRow(
            self._generation,
            number,
            self._partition(key),
            offset,
            -1,
            key,
            deadline,
            dead_letter=dead_letter,
            record_bytes=record_bytes,
        )

    def store_row(self) -> None:
        """Have the queue itself stored, with its settings and the numbers that it may give."""
        self._writes().queues[self._generation] = QueueSettingsRow(
            self._generation,
            self.settings.name,
            format_settings(self.settings),
            self._reserved,
            self.is_paused,
        )

    def restore(self, stored: StoredQueue, last: int) -> None:
        """Take over what the store holds; `last` is the greatest number among the entries."""
        self.is_paused = stored.row.is_paused
        self.delayed.restore(stored.delayed)
        for dedup_id, until_ms in sorted(stored.dedup_ids.items(), key=lambda item: item[1]):
            self.dedup.restore(dedup_id, until_ms)
        tickets = (row.ticket for row in stored.delayed)
        self.next_sequence = max(last, max(tickets, default=0), stored.row.sequences_reserved - 1) + 1
        self._reserved = self.next_sequence

    def _take_number(self) -> int:
        """Never one that was given before, not even by a broker that has ended since."""
        number = self.next_sequence
        self.next_sequence += 1
        if number >= self._reserved:
            self._reserved = number + SEQUENCES_RESERVED
            self.store_row()
        return number

    def _deadline(self, now_ms: int, expires_ms: int) -> int:
        ttl_ms = self.settings.limits.message_ttl
        by_ttl = now_ms + ttl_ms if ttl_ms else NEVER_MS
        return min(by_ttl, expires_ms) if expires_ms else by_ttl

    def _partition(self, key: str | None) -> int:
        if key is not None:
            return partition_of_key(key, self.settings.partitions)
        self._keyless += 1
        return self._keyless % self.settings.partitions
