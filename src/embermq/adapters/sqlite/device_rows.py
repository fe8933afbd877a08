"""Stored deliveries on their way into broker.db: a row that comes and is done between two commits is never written.

What gathers here is part of the open transaction, and goes with it when that is taken back.
"""

import sqlite3
import struct
from collections.abc import Collection

from msgspec import Struct, field

from embermq.model.session_writes import QUEUE_SEQ_STEP, QueueMark, QueueRow, QueueState, SessionWrites

GATHERED_MAX = 4_000
"""Rows that gather at most, marks of rows of the table, and those of them that are done: writing so many is some 20 ms
of work. Of rows that came and are done, but have to stay known, so many may wait for the floor."""
_RANGE = f"WHERE generation = ? AND seq BETWEEN ? AND ? AND seq % {QUEUE_SEQ_STEP} = ?"
"""Rows that are one step apart from the next: what has a place between two of them is none of these."""
_MARK = f"UPDATE device_queue SET state = ?, packet_id = ? + (seq - ?) / {QUEUE_SEQ_STEP} {_RANGE}"
_DONE = f"UPDATE device_queue SET state = 3, packet_id = 0, identifiers = x'', record = x'' {_RANGE}"
_GONE = f"DELETE FROM device_queue {_RANGE}"
_GONE_BELOW = f'{_GONE} AND "offset" < ?'

RowColumns = tuple[int, int, int, int, int, int, int, bytes, bytes]
Range = tuple[int, int, int, int]
"""For `_RANGE`."""


class _Changes(Struct):
    """Of one session, by `seq`, since they were last written. `last_seq` is the highest of them."""

    generation: int
    rows: dict[int, QueueRow] = field(default_factory=dict)
    """Not in the table, and not done."""
    marks: dict[int, QueueMark] = field(default_factory=dict)
    """Of these, and of rows in the table: none is done."""
    done: dict[int, int] = field(default_factory=dict)
    """Rows in the table that are done, with their offset."""
    dropped: set[int] = field(default_factory=set)
    """Rows in the table."""
    last_seq: int = 0


class DeviceRows:
    """Works inside the caller's transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._changes: dict[int, _Changes] = {}
        """By generation."""
        self._finished: list[RowColumns] = []
        """Rows that came and are done, above the floor: they stay known, else a crash would store them again."""
        self._count = self._marks = 0

    def gather(self, writes: SessionWrites, floor: int) -> None:
        """Take what a tick wants of them. Of what is done nothing is kept below `floor`. A `seq` is given once: what is
        written under it already is marked or dropped, and never put again."""
        for row in writes.queue_rows:
            changes = self._of(row.generation, row.seq)
            changes.rows[row.seq] = row
            changes.marks.pop(row.seq, None)
        self._count += len(writes.queue_rows)
        for mark in writes.queue_marks:
            changes = self._of(mark.generation, mark.seq)
            if mark.state != QueueState.DONE:
                self._marks += mark.seq not in changes.rows and mark.seq not in changes.marks
                changes.marks[mark.seq] = mark
            elif not self._finish(changes, mark.seq, floor):
                changes.done[mark.seq] = mark.offset
        for generation, seq in writes.queue_dropped:
            changes = self._of(generation, seq)
            if not self._finish(changes, seq, floor):
                changes.dropped.add(seq)
        if writes.deleted_sessions:
            ended = set(writes.deleted_sessions)
            for generation in ended:
                self._changes.pop(generation, None)
            self._finished = [row for row in self._finished if row[0] not in ended]
        self._write_much(floor)

    def _write_much(self, floor: int) -> None:
        """Of what gathers more than may wait for the commit."""
        if self._count >= GATHERED_MAX:
            # What is sent is mostly done before the commit, which has to have it.
            self._write_rows(self._changes.values())
            self._write_done(self._changes.values(), floor)
            self._count = 0
        if self._marks >= GATHERED_MAX:
            self._write_marks(self._changes.values())
            self._marks = 0
        if len(self._finished) >= 2 * GATHERED_MAX:
            self._finished = [row for row in self._finished if row[2] >= floor]
            if len(self._finished) >= GATHERED_MAX:  # the floor does not follow
                self._put(self._finished[:GATHERED_MAX])
                del self._finished[:GATHERED_MAX]

    def _of(self, generation: int, seq: int) -> _Changes:
        changes = self._changes.get(generation)
        if changes is None:
            changes = self._changes[generation] = _Changes(generation)
        if seq > changes.last_seq:
            changes.last_seq = seq
        return changes

    def _finish(self, changes: _Changes, seq: int, floor: int) -> bool:
        """A row is done. False when it is in the table."""
        mark = changes.marks.pop(seq, None)
        row = changes.rows.pop(seq, None)
        if row is None:
            self._count += 1
            self._marks -= mark is not None
            return False
        self._count -= 1
        if row.offset >= floor:
            place = (row.generation, seq, row.offset, 0, QueueState.DONE)
            self._finished.append((*place, row.flags, row.expires_ms, b"", b""))
        return True

    def write(self, floor: int) -> None:
        """All that has gathered."""
        if self._changes:
            self._write(self._changes.values(), floor)
            self._put([row for row in self._finished if row[2] >= floor])
            self.clear()

    def show(self, generation: int, after_seq: int, floor: int) -> None:
        """Somebody is about to read rows of a session behind `after_seq`."""
        changes = self._changes.get(generation)
        if changes is not None and changes.last_seq > after_seq:
            self._write((changes,), floor)
            changes.last_seq = 0

    def clear(self) -> None:
        """The transaction was taken back."""
        self._changes = {}
        self._finished = []
        self._count = self._marks = 0

    def _write(self, changed: Collection[_Changes], floor: int) -> None:
        self._write_rows(changed)
        self._write_marks(changed)
        self._write_done(changed, floor)

    def _put(self, rows: list[RowColumns]) -> None:
        if rows:
            statement = "INSERT OR REPLACE INTO device_queue VALUES (?,?,?,?,?,?,?,?,?)"
            self._connection.executemany(statement, rows)

    def _write_rows(self, changed: Collection[_Changes]) -> None:
        """With what is marked of them."""
        rows: list[RowColumns] = []
        for changes in changed:
            marks = changes.marks
            for row in changes.rows.values():
                state, packet_id, identifiers = row.state, row.packet_id, row.identifiers
                mark = marks.pop(row.seq, None) if marks else None
                if mark is not None:
                    state, packet_id = mark.state, mark.packet_id
                packed = struct.pack(f">{len(identifiers)}I", *identifiers) if identifiers else b""
                place = (row.generation, row.seq, row.offset, packet_id, state)
                rows.append((*place, row.flags, row.expires_ms, packed, row.record))
            if changes.rows:
                changes.rows = {}
        self._put(rows)

    def _write_marks(self, changed: Collection[_Changes]) -> None:
        """Of rows in the table: a page that was sent has packet ids that follow one another."""
        runs: list[tuple[int, int, int, int, int, int, int]] = []
        for changes in changed:
            rows = changes.rows
            marks = sorted([mark for mark in changes.marks.values() if mark.seq not in rows], key=_place)
            if not marks:
                continue
            first = last = marks[0]
            for mark in marks[1:]:
                if (
                    mark.seq != last.seq + QUEUE_SEQ_STEP
                    or mark.packet_id != last.packet_id + 1
                    or mark.state != last.state
                ):
                    runs.append(_marked(first, last))
                    first = mark
                last = mark
            runs.append(_marked(first, last))
            changes.marks = {seq: mark for seq, mark in changes.marks.items() if seq in rows} if rows else {}
        if runs:
            self._connection.executemany(_MARK, runs)

    def _write_done(self, changed: Collection[_Changes], floor: int) -> None:
        """Of rows in the table. Above the floor they stay known, else a crash would store them again."""
        gone, kept, dropped = list[Range](), list[Range](), list[Range]()
        for changes in changed:
            done, generation = changes.done, changes.generation
            if done:
                _add_ranges(gone, generation, [seq for seq, offset in done.items() if offset < floor])
                _add_ranges(kept, generation, [seq for seq, offset in done.items() if offset >= floor])
                changes.done = {}
            if changes.dropped:
                _add_ranges(dropped, generation, changes.dropped)
                changes.dropped = set()
        many = self._connection.executemany
        if gone:
            many(_GONE, gone)
        if dropped:
            many(_GONE_BELOW, [(*one, floor) for one in dropped])
        if kept or dropped:
            many(_DONE, kept + dropped)

    def forget_done(self, floor: int) -> None:
        """Deliveries that are done stay known until the floor has passed them."""
        self._connection.execute('DELETE FROM device_queue WHERE state = 3 AND "offset" < ?', (floor,))


def _place(mark: QueueMark) -> int:
    return mark.seq


def _marked(first: QueueMark, last: QueueMark) -> tuple[int, int, int, int, int, int, int]:
    """For `_MARK`, of marks that follow one another."""
    of = _range(first.generation, first.seq, last.seq)
    return (first.state, first.packet_id, first.seq, *of)


def _range(generation: int, first: int, last: int) -> Range:
    return generation, first, last, first % QUEUE_SEQ_STEP


def _add_ranges(found: list[Range], generation: int, seqs: Collection[int]) -> None:
    """Those of rows at these places."""
    if not seqs:
        return
    ordered = sorted(seqs)
    first = last = ordered[0]
    for seq in ordered[1:]:
        if seq != last + QUEUE_SEQ_STEP:
            found.append(_range(generation, first, last))
            first = seq
        last = seq
    found.append(_range(generation, first, last))
