"""What one tick writes, by queue, and where the messages are read that come from other queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from msgspec import Struct, field

from embermq.adapters.redis.queue_owners import QueueOwner, QueueOwners, QueueStep
from embermq.adapters.redis.wire import Word
from embermq.formats.redis_queues import (
    EPOCH,
    MOVED,
    UPTO,
    encode_delayed,
    encode_entry,
    encode_group,
    encode_mark,
    encode_moved,
    encode_queue,
    mark_field,
    moved_field,
)
from embermq.model.queue_rows import DelayedRow, EntryRow, GroupMark, GroupRow, Move, QueueWrites

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


Place = tuple[int, int]
"""Queue, and sequence or ticket."""


class Chunk(Struct):
    """Messages that come from other queues in one call: `read` asks for their records, then `put` for the call."""

    read: QueueStep
    put: QueueStep
    moves: list[tuple[Move, EntryRow]] = field(default_factory=list)
    size: int = 0
    sources: set[int] = field(default_factory=set)
    """Queues that may not let go of them before they are stored."""
    places: dict[int, list[Place]] = field(default_factory=dict)
    """By queue where records are: the number there, and the sequence that it gets."""
    bodies: dict[int, bytes] = field(default_factory=dict)
    """By sequence, as they are read."""
    progress: list[Word] = field(default_factory=list)

    def call(self) -> QueueCall:
        """To be asked when the bodies are there."""
        call = QueueCall(progress=[*self.progress])
        for _, row in self.moves:
            call.entries += (row.sequence, encode_entry(row, row.offset))
            body = self.bodies.get(row.sequence)
            if body is not None:
                call.bodies += (row.sequence, body)
        return call


class Part(Struct):
    """What one tick wants of one queue. `first` is put, `chunks` come from other queues, `last` goes; where nothing
    comes from others, and nothing goes there, `last` is part of `first`."""

    owner: QueueOwner
    first: Calls
    last: Calls
    chunks: list[Chunk] = field(default_factory=list)
    is_ended: bool = False
    moved: list[tuple[QueueOwner, str]] = field(default_factory=list)
    """What went from here, as its new queues remember it until it is gone here."""
    reads: list[QueueStep] = field(default_factory=list)
    """What reads records here, once all is there that was put before."""
    waits_for: int = 0
    """How many calls for other queues `last` waits for."""


def gather(writes: QueueWrites, base: int, records: Sequence[bytes], owners: QueueOwners) -> dict[int, Part]:
    """By generation; those that end come first. `owners` forgets these, and learns of those that are new."""
    return _Gathering(writes, base, records, owners).parts


class _Gathering:
    def __init__(self, writes: QueueWrites, base: int, records: Sequence[bytes], owners: QueueOwners) -> None:
        self.parts: dict[int, Part] = {}
        self._writes = writes
        self._owners = owners
        moves = {
            to: move for move in writes.moves if (to := (move.target, move.target_sequence)) in writes.entries
        }
        self._within = {to: move for to, move in moves.items() if move.source == move.target}
        self._across = {to: move for to, move in moves.items() if move.source != move.target}
        self._apart = {move.source for move in self._across.values()} | {to for to, _ in self._across}
        self._made: dict[int, QueueCall] = {}
        """By generation, what puts queues that were not there."""
        self._end()
        self._put_queues()
        incoming = self._put_messages(base, records)
        for generation, rows in incoming.items():
            self._bring(self.parts[generation], rows)
        self._mark_and_remove()
        for part in self.parts.values():
            _forget_finished(part)

    def _part(self, generation: int) -> Part | None:
        """None when the queue is not there any more."""
        part = self.parts.get(generation)
        if part is None:
            owner = self._owners.get(generation)
            if owner is None:
                return None
            first = Calls(owner)
            last = Calls(owner) if generation in self._apart else first
            part = self.parts[generation] = Part(owner, first, last)
        return part

    def _end(self) -> None:
        for generation in sorted(self._writes.ended_queues):
            part = self._part(generation)
            if part is not None:
                part.is_ended = True
                self._owners.release(generation)

    def _put_queues(self) -> None:
        writes = self._writes
        for row in writes.queues.values():
            is_stored = self._owners.take(row).is_stored
            part = self._part(row.generation)
            assert part is not None
            call = part.first.room()
            call.row = encode_queue(row)
            if not is_stored:
                self._made[row.generation] = call
        for generation, group in writes.ended_groups:
            part = self._part(generation)
            if part is not None and not part.is_ended:
                part.first.end_group(group, is_made_anew=(generation, group) in writes.groups)
        for key, group_row in writes.groups.items():
            part = self._part(key[0])
            if part is not None:
                part.first.put_group(group_row)

    def _put_messages(self, base: int, records: Sequence[bytes]) -> dict[int, list[tuple[Move, EntryRow]]]:
        """Returns what comes from other queues."""
        writes = self._writes
        published: list[tuple[int, int, EntryRow | DelayedRow, bytes]] = []
        others: list[tuple[int, int, EntryRow | DelayedRow]] = []
        incoming: dict[int, list[tuple[Move, EntryRow]]] = {}
        for (generation, number), row in _messages(writes):
            if row.record >= 0:
                published.append((base + row.record, number, row, records[row.record]))
            elif row.offset in writes.bodies_at and (generation, number) not in self._across:
                published.append((row.offset, number, row, writes.bodies_at[row.offset]))
            elif isinstance(row, EntryRow) and (move := self._across.get((generation, number))) is not None:
                if self._part(generation) is not None:
                    incoming.setdefault(generation, []).append((move, row))
            else:
                others.append((generation, number, row))
        published.sort(key=_offset)
        firsts = {row.queue: offset for offset, _, row, _ in reversed(published)}
        for (
            generation,
            call,
        ) in self._made.items():  # what the log has before is of earlier queues of that name
            call.upto = firsts.get(generation, base + len(records))
        ids = dict(writes.dedup_ids)
        for offset, number, row, body in published:
            part = self._part(row.queue)
            if part is not None:
                dedup_id = writes.dedup_of.get((row.queue, number))
                until_ms = ids.pop((row.queue, dedup_id), None) if dedup_id is not None else None
                dedup = (until_ms, dedup_id) if dedup_id is not None and until_ms is not None else None
                part.first.publish(row, offset, body, dedup)
        for generation, number, row in others:
            part = self._part(generation)
            if part is not None:
                taken = self._within.get((generation, number))
                if taken is not None and isinstance(row, EntryRow):
                    part.first.take(row, taken.sequence)
                else:
                    part.first.put_without_body(row)
        for (generation, dedup_id), until_ms in ids.items():
            part = self._part(generation)
            if part is not None:
                part.first.remember(dedup_id, until_ms)
        return incoming

    def _bring(self, part: Part, incoming: list[tuple[Move, EntryRow]]) -> None:
        chunk: Chunk | None = None
        for move, row in incoming:
            size = row.record_bytes
            if chunk is None or len(chunk.moves) == ROWS_MAX or chunk.size + size > ROW_BYTES_MAX:
                chunk = Chunk(QueueStep(part.owner.lane), QueueStep(part.owner.lane))
                part.chunks.append(chunk)
            chunk.moves.append((move, row))
            chunk.size += size
            root = move
            while (before := self._across.get((root.source, root.sequence))) is not None:
                root = before  # it came and goes on in one tick: its record is where it was before
            if self._part(root.source) is not None:
                chunk.places.setdefault(root.source, []).append((root.sequence, row.sequence))
            chunk.sources |= {one for one in (move.source, root.source) if self._part(one) is not None}
        for chunk in part.chunks:
            self._note_moved(part, chunk)

    def _note_moved(self, part: Part, chunk: Chunk) -> None:
        by_source: dict[int, list[Move]] = {}
        for move, _ in chunk.moves:
            by_source.setdefault(move.source, []).append(move)
        for generation, moves in by_source.items():
            source = self._part(generation)
            if source is not None:
                name = moved_field(generation, source.owner.moved + 1, moves[0].target_sequence)
                chunk.progress += (name, encode_moved(moves))
                source.moved.append((part.owner, name))

    def _mark_and_remove(self) -> None:
        writes = self._writes
        for (generation, group, sequence), mark in writes.marks.items():
            if (generation, sequence) not in writes.removed:
                part = self._part(generation)
                if part is not None and not part.is_ended:
                    part.last.mark(group, sequence, mark)
        for generation, sequence in writes.removed:
            part = self._part(generation)
            if part is not None and not part.is_ended:
                part.last.remove(sequence)
        taken = {(move.source, move.sequence) for move in self._within.values()}
        for generation, ticket in writes.removed_delayed:
            part = self._part(generation)
            if part is not None and not part.is_ended and (generation, ticket) not in taken:
                part.last.remove_delayed(ticket)
        for part in self.parts.values():
            owner = part.owner
            owner.moved += bool(part.moved)
            part.moved += owner.unfinished
            owner.unfinished.clear()
            if part.moved and not part.is_ended:
                part.last.note_moved(owner.moved)


def _forget_finished(part: Part) -> None:
    """Not all at once: one tick alone rarely adds more than goes here."""
    calls: list[QueueCall] | list[Chunk] = part.first.calls or part.last.calls or part.chunks
    if calls:
        finished = part.owner.finished
        for name in finished[:ROWS_MAX]:
            calls[0].progress += (name, b"")
        del finished[:ROWS_MAX]


def _messages(writes: QueueWrites) -> Iterator[tuple[Place, EntryRow | DelayedRow]]:
    yield from writes.entries.items()
    yield from writes.delayed.items()


def _offset(published: tuple[int, int, EntryRow | DelayedRow, bytes]) -> int:
    return published[0]
