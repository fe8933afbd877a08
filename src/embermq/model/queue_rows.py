"""What durable queues have stored: rows, and the writes of one tick.

Rows name their queue by generation, a number that is never used again.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar, Self

from msgspec import Struct, field

from embermq.model.writes import Writes


class MessageState(IntEnum):
    """State of a message for one group [queues-20]. Nothing stored means QUEUED; DELIVERED is never stored."""

    QUEUED = 0
    DELIVERED = 1
    RETRY = 2
    ACKED = 3
    DLQ = 4


class DeadLetterReason:
    """Why a message became a dead letter: what `dlq-reason` says."""

    REJECTED = "rejected"
    MAX_RETRIES = "max_retries"
    TIMEOUT = "timeout"
    OVERFLOW = "overflow"
    EXPIRED = "expired"


class Attempts(Struct, frozen=True, gc=False):
    """How often a message was tried with one group. `deliveries` that reached a socket; `failures` charged, of which
    `nacks`; `steps` of the schedule that were used up."""

    deliveries: int = 0
    failures: int = 0
    nacks: int = 0
    steps: int = 0
    first_delivered_ms: int = 0
    last_error: str = ""
    is_suspect: bool = False
    """Its consumer was lost while it had this and perhaps others: whoever gets it next has nothing else."""
    doomed: str = ""
    """Why it is to become a dead letter when there is room for it: until then nobody gets it."""


class DeadLetter(Struct, frozen=True, gc=False):
    """The origin of a dead letter [queues-34]. `group` is "" when no group had failed it."""

    queue: str
    group: str
    reason: str
    message_id: str
    attempts: Attempts
    moved_ms: int


class EntryRow(Struct, frozen=True, gc=False):
    """A message in a queue. Its record is number `record` of this tick, or stands at `offset` of the log when `record`
    is -1. `only_group`: the one group it is for, "" for all; `origin_id`: a message id that it keeps from elsewhere.
    `record_bytes`: how large its record is."""

    queue: int
    sequence: int
    partition: int
    offset: int
    record: int
    key: str | None
    expires_ms: int
    only_group: str = ""
    origin_id: str = ""
    dead_letter: DeadLetter | None = None
    record_bytes: int = 0


class DelayedRow(Struct, frozen=True):
    """A message that becomes an entry at `visible_ms`. `expires_ms` is the publisher's own deadline, 0 for none."""

    queue: int
    ticket: int
    offset: int
    record: int
    key: str | None
    visible_ms: int
    expires_ms: int
    record_bytes: int = 0


class Move(Struct, frozen=True):
    """A message goes from one queue to another, or from the delayed ones of a queue to its entries: what has number
    `sequence` in the queue `source` is an entry of `target` now. `group` is the one that loses it, "" for all."""

    source: int
    sequence: int
    group: str
    target: int
    target_sequence: int


class GroupRow(Struct, frozen=True):
    """A group owes nothing below `first_sequence`. `idle_since_ms` is 0 while it has consumers."""

    queue: int
    group: str
    first_sequence: int
    idle_since_ms: int
    is_paused: bool = False


class GroupMark(Struct, frozen=True, gc=False):
    """What a group knows of a message that it does not simply owe. `due_ms` is when RETRY ends."""

    state: MessageState
    attempts: Attempts = Attempts()
    due_ms: int = 0


class QueueSettingsRow(Struct, frozen=True):
    """A queue; `settings` is its JSON. Sequences and tickets below `sequences_reserved` may have been given."""

    generation: int
    name: str
    settings: bytes
    sequences_reserved: int
    is_paused: bool = False


MarkKey = tuple[int, str, int]
"""Queue, group, sequence."""


class QueueWrites(Writes):
    """What one tick writes about queues. What has ended goes first, with all that hangs on it; then everything is
    put; what is removed goes last, entries with their marks. Putting and removing what is there, or is not, is no
    error."""

    FALLS: ClassVar[frozenset[str]] = frozenset({"dedup_ids", "dedup_of"})

    ended_queues: set[int] = field(default_factory=set)
    """Generations of queues that are deleted, with everything they have."""
    ended_groups: set[tuple[int, str]] = field(default_factory=set)
    queues: dict[int, QueueSettingsRow] = field(default_factory=dict)
    groups: dict[tuple[int, str], GroupRow] = field(default_factory=dict)
    entries: dict[tuple[int, int], EntryRow] = field(default_factory=dict)
    """By queue and sequence."""
    delayed: dict[tuple[int, int], DelayedRow] = field(default_factory=dict)
    """By queue and ticket."""
    marks: dict[MarkKey, GroupMark] = field(default_factory=dict)
    dedup_ids: dict[tuple[int, str], int] = field(default_factory=dict)
    """By queue and id: until when, Unix milliseconds. Those of the past mean nothing and may be deleted at any time."""
    dedup_of: dict[tuple[int, int], str] = field(default_factory=dict)
    """By queue and sequence or ticket: the dedup id with which a publish of this tick has come."""
    removed: dict[tuple[int, int], int] = field(default_factory=dict)
    """Queue and sequence of entries -> offset of the record, which nobody may need any more then."""
    removed_delayed: dict[tuple[int, int], int] = field(default_factory=dict)
    """Queue and ticket -> offset."""
    moves: list[Move] = field(default_factory=list)
    """Where entries that are put come from: their records are there, and what is marked or removed of them there has to
    wait until they are stored. It says nothing of entries that are not put after all."""
    bodies_at: dict[int, bytes] = field(default_factory=dict)
    """Records of entries by their offsets, where the store of entries keeps records and the log has had these before
    this tick."""

    def end_queue(self, generation: int) -> None:
        """A queue that has no messages is deleted: nothing of it is put."""
        self.ended_queues.add(generation)
        self.queues.pop(generation, None)
        self.groups = {key: row for key, row in self.groups.items() if key[0] != generation}
        self.entries = {key: row for key, row in self.entries.items() if key[0] != generation}
        self.delayed = {key: row for key, row in self.delayed.items() if key[0] != generation}
        self.marks = {key: mark for key, mark in self.marks.items() if key[0] != generation}
        self.dedup_ids = {key: until for key, until in self.dedup_ids.items() if key[0] != generation}

    def put_before(self, kept: Self) -> None:
        ended = self.ended_queues
        for group in [group for group in kept.groups if group in self.ended_groups or group[0] in ended]:
            del kept.groups[group]
        for mark in [mark for mark in kept.marks if mark[:2] in self.ended_groups or mark[0] in ended]:
            del kept.marks[mark]
        kept.queues = {one: row for one, row in kept.queues.items() if one not in ended}
        kept.entries = {
            key: row for key, row in kept.entries.items() if row.record < 0 and key[0] not in ended
        }
        kept.delayed = {
            key: row for key, row in kept.delayed.items() if row.offset >= 0 and key[0] not in ended
        }
        super().put_before(kept)


class StoredQueue(Struct, frozen=True):
    """Everything that is stored of one queue. Entries and delayed rows have offsets, and are in the order of their
    numbers; entries can be gone through once, and may be read meanwhile."""

    row: QueueSettingsRow
    groups: tuple[GroupRow, ...]
    entries: Iterable[EntryRow]
    delayed: tuple[DelayedRow, ...]
    marks: dict[MarkKey, GroupMark]
    dedup_ids: dict[str, int]
    unfinished: tuple[Move, ...] = ()
    """What came from other queues and is in these still: a crash was faster. To be taken out there."""
