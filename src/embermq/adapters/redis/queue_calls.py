"""What one tick writes about one queue, as calls of a script: small, since Redis does nothing else meanwhile."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct, field

from embermq.adapters.redis.queue_owners import QueueOwner
from embermq.adapters.redis.wire import Word
from embermq.formats.redis_queues import (
    EPOCH,
    MOVED,
    UPTO,
    encode_delayed,
    encode_entry,
    encode_group,
    encode_mark,
    mark_field,
)
from embermq.model.queue_rows import DelayedRow, EntryRow, GroupMark, GroupRow

ROWS_MAX = 200
"""Rows in one call."""
ROW_BYTES_MAX = 1024 * 1024
"""Bytes of records in one call, unless one message has more."""
GROUPS_A_ROW = 50
"""A message that goes counts as one row more for so many groups, whose marks are looked for."""


class QueueCall(Struct):
    """Arguments of one call, in pairs."""

    row: bytes = b""
    rows: int = 0
    size: int = 0
    upto: int = 0
    groups: list[Word] = field(default_factory=list)
    entries: list[Word] = field(default_factory=list)
    bodies: list[Word] = field(default_factory=list)
    delayed: list[Word] = field(default_factory=list)
    marks: list[Word] = field(default_factory=list)
    progress: list[Word] = field(default_factory=list)
    taken: list[Word] = field(default_factory=list)
    dedup: list[Word] = field(default_factory=list)
    removed: list[Word] = field(default_factory=list)

    def words(self, owner: QueueOwner, now_ms: int) -> list[Word]:
        """As the script takes them."""
        if self.upto:
            self.progress += (UPTO, self.upto)
        words: list[Word] = [EPOCH, owner.generation, self.row, now_ms]
        for some in (
            self.groups,
            self.entries,
            self.bodies,
            self.delayed,
            self.marks,
            self.progress,
            self.taken,
            self.dedup,
        ):
            words.append(len(some))
            words += some
        numbers = owner.groups.values() if self.removed else ()
        words.append(len(numbers))
        words += numbers
        words.append(len(self.removed))
        words += self.removed
        return words


class Calls:
    """Rows of one queue in their order."""

    def __init__(self, owner: QueueOwner) -> None:
        self.owner = owner
        self.calls: list[QueueCall] = []

    def __bool__(self) -> bool:
        return bool(self.calls)

    def room(self, size: int = 0, rows: int = 1) -> QueueCall:
        """The call that gets the next row, with a record of `size`."""
        call = self.calls[-1] if self.calls else None
        if call is None or call.rows + rows > ROWS_MAX or (call.size and call.size + size > ROW_BYTES_MAX):
            call = QueueCall()
            self.calls.append(call)
        call.rows += rows
        call.size += size
        return call

    def put_group(self, row: GroupRow) -> None:
        """Store the settings of a consumer group, new or changed."""
        self.room().groups += (row.group, encode_group(row, self.owner.number(row.group)))

    def end_group(self, group: str, *, is_made_anew: bool) -> None:
        """A group is gone, if it was there; what it has marked goes bit by bit."""
        if self.owner.groups.pop(group, None) is None:
            return
        self.owner.is_swept = False
        if not is_made_anew:
            self.room().groups += (group, b"")

    def publish(
        self, row: EntryRow | DelayedRow, offset: int, body: bytes, dedup: tuple[int, str] | None
    ) -> None:
        """A message that stands there in the log comes; to be called in the order of offsets. `dedup` is its id, and
        until when that is known."""
        call = self.room(len(body))
        call.upto = offset + 1
        if dedup is not None:
            call.dedup += dedup
        if isinstance(row, EntryRow):
            call.entries += (row.sequence, encode_entry(row, offset))
            call.bodies += (row.sequence, body)
        else:
            call.delayed += (row.ticket, encode_delayed(row, offset))
            call.bodies += (row.ticket, body)

    def take(self, row: EntryRow, ticket: int) -> None:
        """A delayed message becomes an entry."""
        call = self.room()
        call.entries += (row.sequence, encode_entry(row, row.offset))
        call.taken += (ticket, row.sequence)
        call.delayed += (ticket, b"")
        call.bodies += (ticket, b"")

    def put_without_body(self, row: EntryRow | DelayedRow) -> None:
        """A row whose record nobody gives: it is there already, or lost."""
        call = self.room()
        if isinstance(row, EntryRow):
            call.entries += (row.sequence, encode_entry(row, row.offset))
        else:
            call.delayed += (row.ticket, encode_delayed(row, row.offset))

    def mark(self, group: str, sequence: int, mark: GroupMark) -> None:
        """A group that is there knows something of a message."""
        number = self.owner.groups.get(group)
        if number is not None:
            self.room().marks += (mark_field(sequence, number), _mark(mark))

    def remember(self, dedup_id: str, until_ms: int) -> None:
        """Of a message that has come."""
        self.room().dedup += (until_ms, dedup_id)

    def remove(self, sequence: int) -> None:
        self.room(rows=1 + len(self.owner.groups) // GROUPS_A_ROW).removed.append(sequence)

    def remove_delayed(self, ticket: int) -> None:
        """Remove a delayed message and its body, by its ticket."""
        call = self.room()
        call.delayed += (ticket, b"")
        call.bodies += (ticket, b"")

    def note_moved(self, number: int) -> None:
        """With the last call it is gone what went to other queues in the step of this number."""
        call = self.calls[-1] if self.calls else self.room()
        call.progress += (MOVED, number)


@lru_cache(1_024)
def _mark(mark: GroupMark) -> bytes:
    return encode_mark(mark)
