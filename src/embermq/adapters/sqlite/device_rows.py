"""Stored deliveries on their way into broker.db: a row that comes and is done between two commits is never written.

What gathers here is part of the open transaction, and goes with it when that is taken back.
"""

import sqlite3
import struct
from collections.abc import Iterable

from msgspec import Struct, field

from embermq.model.session_writes import QueueMark, QueueRow, QueueState, SessionWrites

GATHERED_MAX = 4_000
"""Changes that gather at most: writing them is some 20 ms of work."""
_UPDATE = "UPDATE device_queue SET state = ?, packet_id = ? WHERE generation = ? AND seq = ?"
_DONE = "UPDATE device_queue SET state = 3, packet_id = 0, record = x'' WHERE generation = ? AND seq = ?"


class _Changes(Struct):
    """Of one session, by `seq`, since they were last written. `last_seq` is the highest of them."""

    rows: dict[int, QueueRow] = field(default_factory=dict)
    marks: dict[int, QueueMark] = field(default_factory=dict)
    dropped: set[tuple[int, int]] = field(default_factory=set)
    """With the generation; of rows that are in the table."""
    last_seq: int = 0


class DeviceRows:
    """Works inside the caller's transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._changes: dict[int, _Changes] = {}
        """By generation."""
        self._count = 0

    def gather(self, writes: SessionWrites, floor: int) -> None:
        """Take what a tick wants of them. Of what is done nothing is kept below `floor`. A `seq` is given once: what is
        written under it already is marked or dropped, and never put again."""
        for row in writes.queue_rows:
            changes = self._of(row.generation, row.seq)
            changes.rows[row.seq] = row
            changes.marks.pop(row.seq, None)
        for mark in writes.queue_marks:
            changes = self._of(mark.generation, mark.seq)
            changes.marks[mark.seq] = mark
        for generation, seq in writes.queue_dropped:
            changes = self._of(generation, seq)
            if seq in changes.rows:
                offset = changes.rows[seq].offset
                changes.marks[seq] = QueueMark(generation, seq, offset, QueueState.DONE, 0)
            else:
                changes.dropped.add((generation, seq))
        for generation in writes.deleted_sessions:
            self._changes.pop(generation, None)
        self._count += len(writes.queue_rows) + len(writes.queue_marks) + len(writes.queue_dropped)
        if self._count >= GATHERED_MAX:
            self.write(floor)

    def _of(self, generation: int, seq: int) -> _Changes:
        changes = self._changes.get(generation)
        if changes is None:
            changes = self._changes[generation] = _Changes()
        if seq > changes.last_seq:
            changes.last_seq = seq
        return changes

    def write(self, floor: int) -> None:
        if self._changes:
            self._write(self._changes.values(), floor)
            self.clear()

    def show(self, generation: int, after_seq: int, floor: int) -> None:
        """Somebody is about to read rows of a session behind `after_seq`."""
        changes = self._changes.get(generation)
        if changes is not None and changes.last_seq > after_seq:
            self._write((changes,), floor)
            del self._changes[generation]

    def clear(self) -> None:
        """The transaction was taken back."""
        self._changes = {}
        self._count = 0

    def _write(self, changed: Iterable[_Changes], floor: int) -> None:
        rows: list[tuple[int, int, int, int, int, int, int, bytes, bytes]] = []
        marks, done, gone = [], [], []
        dropped: list[tuple[int, int]] = []
        for changes in changed:
            for row in changes.rows.values():
                state, packet_id, record = row.state, row.packet_id, row.record
                mark = changes.marks.get(row.seq)
                if mark is not None:
                    state, packet_id = mark.state, mark.packet_id
                    if state == QueueState.DONE:
                        if row.offset < floor:
                            continue
                        packet_id, record = 0, b""
                identifiers = row.identifiers
                packed = struct.pack(f">{len(identifiers)}I", *identifiers) if identifiers else b""
                place = (row.generation, row.seq, row.offset, packet_id, state)
                rows.append((*place, row.flags, row.expires_ms, packed, record))
            for mark in changes.marks.values():
                if mark.seq in changes.rows:
                    continue
                if mark.state != QueueState.DONE:
                    marks.append((mark.state, mark.packet_id, mark.generation, mark.seq))
                elif mark.offset < floor:
                    gone.append((mark.generation, mark.seq))
                else:
                    done.append((mark.generation, mark.seq))
            dropped += changes.dropped
        many = self._connection.executemany
        if rows:
            many("INSERT OR REPLACE INTO device_queue VALUES (?,?,?,?,?,?,?,?,?)", rows)
        if marks:
            many(_UPDATE, marks)
        if done:
            many(_DONE, done)
        if gone:
            many("DELETE FROM device_queue WHERE generation = ? AND seq = ?", gone)
        if dropped:  # above the floor they stay known, else a crash would store them again
            below = [(generation, seq, floor) for generation, seq in dropped]
            many('DELETE FROM device_queue WHERE generation = ? AND seq = ? AND "offset" < ?', below)
            many(_DONE, dropped)

    def forget_done(self, floor: int) -> None:
        """Deliveries that are done stay known until the floor has passed them."""
        self._connection.execute('DELETE FROM device_queue WHERE state = 3 AND "offset" < ?', (floor,))
