"""Durable queues in broker.db: what a tick writes, and what becomes of bodies when the log lets go of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from msgspec import msgpack

from embermq.adapters.sqlite.connection import Now, wall_ms
from embermq.formats.entry_rest import Rest, decode_rest, encode_rest
from embermq.model.queue_rows import Attempts, DelayedRow, EntryRow, GroupMark, MessageState, QueueWrites
from embermq.ports.checkpoint import ReadRecords

_ENCODE = msgpack.Encoder().encode
_DECODE_ATTEMPTS = msgpack.Decoder(Attempts).decode

EntryColumns = tuple[int, int, int, int, int, str | None, bytes | None, int]
"""queue, sequence, partition, offset, expires_ms, message_key, rest, record_bytes."""


_LIFE = "\0"
"""In no name of a group: MQTT has no such character."""


def name_of_group(key: str) -> str:
    """Of what stands for a group in its row and its marks."""
    return key.partition(_LIFE)[0]


def keys_of_group(name: str) -> tuple[str, str]:
    """Keys of this name are from the first on, and below the second."""
    return name, name + "\1"


def next_key(name: str, keys: Iterable[str]) -> str:
    """For a group of this name that is made while marks of former ones stand there with these keys: the name alone when
    there are none."""
    lives = [int(key.partition(_LIFE)[2] or 0) for key in keys]
    return f"{name}{_LIFE}{max(lives) + 1}" if lives else name


def to_entry_columns(row: EntryRow, base: int) -> EntryColumns:
    """Of a tick whose records begin at `base`."""
    rest: bytes | None = None
    if row.only_group or row.origin_id or row.dead_letter is not None:
        rest = encode_rest(Rest(row.only_group, row.origin_id, row.dead_letter))
    offset = row.offset if row.record < 0 else base + row.record
    return (row.queue, row.sequence, row.partition, offset, row.expires_ms, row.key, rest, row.record_bytes)


def to_entry(columns: EntryColumns) -> EntryRow:
    """Read a row of `queue_entry` as a start does."""
    queue, sequence, partition, offset, expires_ms, key, rest, size = columns
    if rest is None:
        return EntryRow(queue, sequence, partition, offset, -1, key, expires_ms, record_bytes=size)
    more = decode_rest(rest)
    return EntryRow(
        queue,
        sequence,
        partition,
        offset,
        -1,
        key,
        expires_ms,
        more.only_group,
        more.origin_id,
        more.dead_letter,
        size,
    )


def to_attempts_column(attempts: Attempts) -> bytes | None:
    """The stored form of attempts: packed bytes, or None (NULL) when there were none."""
    return None if attempts == Attempts() else _ENCODE(attempts)


def to_mark(state: int, due_ms: int, attempts: bytes | None) -> GroupMark:
    """Read a row of `queue_mark` as a start does."""
    return GroupMark(
        MessageState(state), Attempts() if attempts is None else _DECODE_ATTEMPTS(attempts), due_ms
    )


SWEPT_MAX = 1_000
"""Rows of each table that one tick removes of queues that are deleted."""
SWEPT_MARKS_MAX = 5_000
"""Marks that one tick looks through for those of a group that was removed."""

GATHERED_MAX = 4_000
"""Entries that gather at most, marks of them, and entries of the table that go: writing them is some 20 ms of work."""
COPIED_MAX = 2_000
"""Records that one tick copies out of the log before it is trimmed."""

_NEEDED = """
SELECT "offset" FROM queue_entry WHERE "offset" >= ?1 AND "offset" < ?2
UNION SELECT "offset" FROM queue_delayed WHERE "offset" >= ?1 AND "offset" < ?2 ORDER BY 1 LIMIT ?3
"""
_DROP_BODY = """
DELETE FROM queue_body WHERE "offset" = ?1
AND NOT EXISTS (SELECT 1 FROM queue_entry WHERE "offset" = ?1)
AND NOT EXISTS (SELECT 1 FROM queue_delayed WHERE "offset" = ?1)
"""
_FORGET_DEDUP = """
DELETE FROM queue_dedup WHERE (queue, dedup_id) IN (
    SELECT queue, dedup_id FROM queue_dedup WHERE until_ms < ? ORDER BY until_ms LIMIT ?
)
"""
_KEY = "SELECT name FROM queue_group WHERE queue = ? AND name >= ? AND name < ?"
_ENDED = "SELECT name FROM queue_group_ended WHERE queue = ? AND name >= ? AND name < ?"
_SWEEP_MARKS = """
DELETE FROM queue_mark WHERE queue = ?1 AND sequence <= (
    SELECT MAX(sequence) FROM (SELECT sequence FROM queue_mark WHERE queue = ?1 ORDER BY sequence LIMIT ?2)
)
"""
_NEXT_MARKS = """
SELECT MAX(sequence), COUNT(*) FROM (
    SELECT sequence FROM queue_mark WHERE queue = ? AND sequence >= ? ORDER BY sequence LIMIT ?
)
"""

EntryKey = tuple[int, int]
"""Queue and sequence."""


class QueueTables:
    """Works inside the caller's transactions."""

    def __init__(self, connection: sqlite3.Connection, now_ms: Now = wall_ms) -> None:
        self._connection = connection
        self._now_ms = now_ms
        run = connection.execute
        (self._bodies_end,) = run('SELECT COALESCE(MAX("offset") + 1, 0) FROM queue_body').fetchone()
        """No body is kept at or above it."""
        ended = run("SELECT 1 FROM queue_ended UNION ALL SELECT 1 FROM queue_group_ended")
        self.is_sweeping = ended.fetchone() is not None
        """Whether `sweep` has something to do."""
        self._has_keys = any(key != name_of_group(key) for (key,) in run("SELECT name FROM queue_group"))
        """Whether there may be groups whose key is not their name. Asked each time, since a tick may be taken back."""
        self.clear()

    def clear(self) -> None:
        """The transaction was taken back."""
        self._entries: dict[EntryKey, tuple[EntryRow, int]] = {}
        """Not in the table, and not gone; each with the offset of the first record of its tick."""
        self._marks: dict[EntryKey, dict[str, GroupMark]] = {}
        """By group; of these, and of entries in the table."""
        self._gone: list[EntryKey] = []
        """Entries in the table."""
        self._let_go: list[int] = []
        """Offsets of records that nobody may need any more."""
        self._count = 0

    def apply(self, writes: QueueWrites, base: int) -> None:
        """Of a tick whose records begin at `base`. What comes, is marked and goes only gathers; anything else is
        written, behind what has gathered before."""
        if _only_gathers(writes):
            self._gather(writes, base)
            if self._count >= GATHERED_MAX:
                self.write()
            return
        self.write()
        if writes.ended_queues or writes.ended_groups:
            self._end(writes)
        if writes.queues or writes.groups:
            self._put_queues(writes)
        if writes.delayed:
            self._connection.executemany(
                "INSERT OR REPLACE INTO queue_delayed VALUES (?, ?, ?, ?, ?, ?, ?)",
                [_delayed_columns(row, base) for row in writes.delayed.values()],
            )
        if writes.dedup_ids:
            ids = [(queue, one, until_ms) for (queue, one), until_ms in writes.dedup_ids.items()]
            self._connection.executemany("INSERT OR REPLACE INTO queue_dedup VALUES (?, ?, ?)", ids)
            self._connection.execute(_FORGET_DEDUP, (self._now_ms(), 2 * len(ids)))
        if writes.bodies_at:
            self._keep(writes.bodies_at.items())
        self._gather(writes, base)
        self.write()
        if writes.removed_delayed:
            many = self._connection.executemany
            many("DELETE FROM queue_delayed WHERE queue = ? AND ticket = ?", writes.removed_delayed)
            self._drop(writes.removed_delayed.values())

    def _gather(self, writes: QueueWrites, base: int) -> None:
        entries, marks = self._entries, self._marks
        for key, row in writes.entries.items():
            entries[key] = (row, base)
        for (queue, group, sequence), mark in writes.marks.items():
            marks.setdefault((queue, sequence), {})[group] = mark
        count = len(writes.entries) + len(writes.marks)
        for key, offset in writes.removed.items():
            if entries.pop(key, None) is None:
                self._gone.append(key)
                count += 1
            else:
                count -= 1
            if marks:
                count -= len(marks.pop(key, ()))
            if offset < self._bodies_end:
                self._let_go.append(offset)
        self._count += count

    def write(self) -> None:
        """Write what has gathered: an entry that has come and gone since is nowhere."""
        many = self._connection.executemany
        if self._entries:
            rows = [to_entry_columns(row, base) for row, base in self._entries.values()]
            many("INSERT OR REPLACE INTO queue_entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        if self._marks:
            many("INSERT OR REPLACE INTO queue_mark VALUES (?, ?, ?, ?, ?, ?)", self._mark_columns())
        if self._gone:
            gone = _ranges(self._gone)
            many("DELETE FROM queue_entry WHERE queue = ? AND sequence BETWEEN ? AND ?", gone)
            many("DELETE FROM queue_mark WHERE queue = ? AND sequence BETWEEN ? AND ?", gone)
        if self._let_go:
            self._drop(self._let_go)
        self.clear()

    def _mark_columns(self) -> Iterator[tuple[int, int, str, int, int, bytes | None]]:
        keys: dict[tuple[int, str], str] = {}
        for (queue, sequence), marks in self._marks.items():
            for group, mark in marks.items():
                key = keys.get((queue, group))
                if key is None:
                    key = keys[queue, group] = self._key_of(queue, group)
                yield (
                    queue,
                    sequence,
                    key,
                    mark.state,
                    mark.due_ms,
                    to_attempts_column(mark.attempts),
                )

    def _end(self, writes: QueueWrites) -> None:
        many = self._connection.executemany
        queues = [(generation,) for generation in writes.ended_queues]
        if queues:
            many("INSERT OR REPLACE INTO queue_ended VALUES (?)", queues)
            many("DELETE FROM queue WHERE generation = ?", queues)
            self.is_sweeping = True
        groups = [(queue, self._key_of(queue, group)) for queue, group in writes.ended_groups]
        if groups:
            many("DELETE FROM queue_group WHERE queue = ? AND name = ?", groups)
            many("INSERT OR REPLACE INTO queue_group_ended VALUES (?, ?, 0)", groups)
            self.is_sweeping = True

    def _put_queues(self, writes: QueueWrites) -> None:
        many = self._connection.executemany
        if writes.queues:
            many(
                "INSERT OR REPLACE INTO queue VALUES (?, ?, ?, ?, ?)",
                [
                    (row.generation, row.name, row.settings, row.sequences_reserved, row.is_paused)
                    for row in writes.queues.values()
                ],
            )
            self._connection.execute(
                "INSERT INTO meta VALUES ('queue_generation', ?1)"
                " ON CONFLICT DO UPDATE SET value = MAX(value, ?1)",
                (max(writes.queues) + 1,),
            )
        many(
            "INSERT OR REPLACE INTO queue_group VALUES (?, ?, ?, ?, ?)",
            [
                (
                    row.queue,
                    self._make_key(row.queue, row.group),
                    row.first_sequence,
                    row.idle_since_ms,
                    row.is_paused,
                )
                for row in writes.groups.values()
            ],
        )

    def _make_key(self, queue: int, group: str) -> str:
        """Of a group that is there from now on, at the latest. Of one that was removed nothing is left to it, and what
        goes bit by bit is not waited for."""
        key = self._key_of(queue, group)
        ended = self._connection.execute(_ENDED, (queue, *keys_of_group(group))).fetchall()
        if key == group and ended:
            key = next_key(group, (found for (found,) in ended))
            self._has_keys = True
        return key

    def _key_of(self, queue: int, group: str) -> str:
        """What stands for a group in its row and its marks."""
        if not self._has_keys:
            return group
        row = self._connection.execute(_KEY, (queue, *keys_of_group(group))).fetchone()
        return group if row is None else str(row[0])

    def keep_bodies(self, start: int, end: int, read: ReadRecords) -> int:
        """The log is about to lose the records in [start, end): copy what queues need of them, as much as one tick may.
        Returns the offset below which this is done."""
        needed = {row[0] for row in self._connection.execute(_NEEDED, (start, end, COPIED_MAX))}
        if not needed:
            return end
        stop = max(needed) + 1
        self._keep((offset, record) for offset, record in read(min(needed), stop) if offset in needed)
        return stop if len(needed) == COPIED_MAX else end

    def _keep(self, bodies: Iterable[tuple[int, bytes]]) -> None:
        rows = list(bodies)
        self._connection.executemany("INSERT OR REPLACE INTO queue_body VALUES (?, ?)", rows)
        self._bodies_end = max([self._bodies_end, *(offset + 1 for offset, _ in rows)])

    def _drop(self, offsets: Iterable[int]) -> None:
        """What is kept of these records, unless somebody else needs it."""
        kept = [(offset,) for offset in offsets if offset < self._bodies_end]
        if kept:
            self._connection.executemany(_DROP_BODY, kept)

    def sweep(self) -> None:
        """Remove some of what groups and queues have left that are gone."""
        run = self._connection.execute
        group = run("SELECT queue, name, swept FROM queue_group_ended LIMIT 1").fetchone()
        if group is not None:
            self._sweep_marks(*group)
            return
        row = run("SELECT generation FROM queue_ended LIMIT 1").fetchone()
        if row is None:
            self.is_sweeping = False
            return
        (queue,) = row
        left = self._sweep("queue_entry", "sequence", queue) + self._sweep("queue_delayed", "ticket", queue)
        left += run(_SWEEP_MARKS, (queue, SWEPT_MAX)).rowcount
        if left == 0:
            run("DELETE FROM queue_group WHERE queue = ?", (queue,))
            run("DELETE FROM queue_dedup WHERE queue = ?", (queue,))
            run("DELETE FROM queue_ended WHERE generation = ?", (queue,))

    def _sweep_marks(self, queue: int, group: str, swept: int) -> None:
        run = self._connection.execute
        last, count = run(_NEXT_MARKS, (queue, swept, SWEPT_MARKS_MAX)).fetchone()
        if count:
            run(
                "DELETE FROM queue_mark WHERE queue = ? AND message_group = ? AND sequence BETWEEN ? AND ?",
                (queue, group, swept, last),
            )
        if count < SWEPT_MARKS_MAX:
            run("DELETE FROM queue_group_ended WHERE queue = ? AND name = ?", (queue, group))
        else:
            run(
                "UPDATE queue_group_ended SET swept = ? WHERE queue = ? AND name = ?",
                (last + 1, queue, group),
            )

    def _sweep(self, table: str, number: str, queue: int) -> int:
        rows = self._connection.execute(
            f'SELECT {number}, "offset" FROM {table} WHERE queue = ? ORDER BY {number} LIMIT ?',
            (queue, SWEPT_MAX),
        ).fetchall()
        if rows:
            last = rows[-1][0]
            self._connection.execute(f"DELETE FROM {table} WHERE queue = ? AND {number} <= ?", (queue, last))
            self._drop(offset for _, offset in rows)
        return len(rows)


def _delayed_columns(row: DelayedRow, base: int) -> tuple[int, int, int, int, int, str | None, int]:
    offset = row.offset if row.record < 0 else base + row.record
    return (row.queue, row.ticket, offset, row.visible_ms, row.expires_ms, row.key, row.record_bytes)


def _ranges(keys: list[EntryKey]) -> list[tuple[int, int, int]]:
    """Of these entries: queue, first and last of numbers that follow one another."""
    keys.sort()
    found: list[tuple[int, int, int]] = []
    queue, first = keys[0]
    last = first
    for key in keys[1:]:
        if key != (queue, last + 1):
            found.append((queue, first, last))
            queue, first = key
        last = key[1]
    found.append((queue, first, last))
    return found


def _only_gathers(writes: QueueWrites) -> bool:
    """Whether nothing but entries comes, is marked and goes."""
    return not (
        writes.ended_queues
        or writes.ended_groups
        or writes.queues
        or writes.groups
        or writes.delayed
        or writes.dedup_ids
        or writes.removed_delayed
        or writes.bodies_at
    )
