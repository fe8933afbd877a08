"""Shared subscriptions with logs of their own in broker.db."""

import sqlite3
import struct

from embermq.adapters.sqlite.connection import to_store_error
from embermq.model.application_positions import StoredPositions
from embermq.model.session_writes import QueueState
from embermq.model.shared_logs import SharedGroupRow, SharedMark, SharedWrites
from embermq.model.tick_writes import TickWrites
from embermq.ports.shared_groups import MarksFound, SharedGroups, StoredShared

_MARK = """
INSERT INTO shared_inflight
    (shared_group, partition, "offset", session, packet_id, state, record, identifiers, retain)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (shared_group, partition, "offset") DO UPDATE
SET session = excluded.session, packet_id = excluded.packet_id, state = excluded.state, record = excluded.record
"""
_FORGET_DONE = """
DELETE FROM shared_inflight WHERE shared_group = :shared_group AND partition = :partition AND state = :done AND (
    "offset" < (
        SELECT committed_offset FROM shared_position
        WHERE shared_group = :shared_group AND partition = :partition
    )
    OR NOT EXISTS (SELECT 1 FROM shared_group WHERE generation = :shared_group)
)
"""


class SqliteSharedGroups(SharedGroups):
    """See the port."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def load(self) -> StoredShared:
        run = self._connection.execute
        try:
            groups = run(
                "SELECT share, topic_filter, generation, log_generation, since, identity, starts FROM shared_group"
                " ORDER BY generation"
            ).fetchall()
            positions = run(
                "SELECT shared_group, partition, base_offset, committed_offset, floors FROM shared_position"
            ).fetchall()
            claims = run('SELECT shared_group, partition, "offset" FROM shared_inflight').fetchall()
        except sqlite3.Error as error:
            raise to_store_error(error, "cannot read broker.db") from error
        return StoredShared(
            [
                SharedGroupRow(share, text, generation, log_generation, since, identity, _pairs(starts))
                for share, text, generation, log_generation, since, identity, starts in groups
            ],
            {
                (group, partition): StoredPositions(base, committed, _pairs(floors))
                for group, partition, base, committed, floors in positions
            },
            claims,
        )

    def in_flight(self, session: int, then: MarksFound) -> None:
        try:
            rows = self._connection.execute(
                'SELECT shared_group, partition, "offset", packet_id, state, record, identifiers, retain'
                " FROM shared_inflight WHERE session = ? AND state < 3 ORDER BY id",
                (session,),
            ).fetchall()
        except sqlite3.Error as error:
            then(to_store_error(error, "cannot read broker.db"))
            return
        then(
            [
                SharedMark(
                    group, partition, offset, session, packet_id, state, record, _numbers(ids), bool(retain)
                )
                for group, partition, offset, packet_id, state, record, ids, retain in rows
            ]
        )


def apply_shared_writes(connection: sqlite3.Connection, writes: TickWrites) -> None:
    """Inside the caller's transaction."""
    if not writes.shared.is_empty():
        _apply(connection, writes.shared)
    for generation in writes.ended_applications:
        _end_session(connection, generation)


def _apply(connection: sqlite3.Connection, writes: SharedWrites) -> None:
    many = connection.executemany
    many(
        "INSERT OR REPLACE INTO shared_group"
        " (share, topic_filter, generation, log_generation, since, identity, starts) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                row.share,
                row.topic_filter,
                row.generation,
                row.log_generation,
                row.since,
                row.identity,
                _from_pairs(row.starts),
            )
            for row in writes.groups
        ],
    )
    many(
        _MARK,
        [
            (
                mark.group,
                mark.partition,
                mark.offset,
                mark.session,
                mark.packet_id,
                mark.state,
                mark.record,
                struct.pack(f">{len(mark.identifiers)}I", *mark.identifiers),
                mark.retain,
            )
            for mark in writes.marks
        ],
    )
    many(
        "INSERT OR REPLACE INTO shared_position VALUES (?, ?, ?, ?, ?)",
        [
            (group, partition, stored.base_offset, stored.committed_offset, _from_pairs(stored.floors))
            for (group, partition), stored in writes.positions.items()
        ],
    )
    for generation in writes.ended_groups:
        connection.execute("DELETE FROM shared_group WHERE generation = ?", (generation,))
        connection.execute("DELETE FROM shared_position WHERE shared_group = ?", (generation,))
        connection.execute(
            "DELETE FROM shared_inflight WHERE shared_group = ? AND state = ?", (generation, QueueState.DONE)
        )
    touched = writes.positions.keys() | {
        (mark.group, mark.partition) for mark in writes.marks if mark.state == QueueState.DONE
    }
    many(
        _FORGET_DONE,
        [
            {"shared_group": group, "partition": partition, "done": QueueState.DONE}
            for group, partition in touched
        ],
    )


def _end_session(connection: sqlite3.Connection, generation: int) -> None:
    """What was in flight to it ends with it, and is not given to another one [MQTT-4.8.2-5]."""
    rows = connection.execute(
        'SELECT shared_group, partition, "offset" FROM shared_inflight WHERE session = ? AND state < 3',
        (generation,),
    ).fetchall()
    if rows:
        done = [
            SharedMark(group, partition, offset, 0, 0, QueueState.DONE) for group, partition, offset in rows
        ]
        _apply(connection, SharedWrites(marks=done))


def _pairs(data: bytes) -> tuple[tuple[int, int], ...]:
    return tuple(struct.iter_unpack(">qq", data))


def _from_pairs(pairs: tuple[tuple[int, int], ...]) -> bytes:
    return b"".join(struct.pack(">qq", *pair) for pair in pairs)


def _numbers(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(data) // 4}I", data)
