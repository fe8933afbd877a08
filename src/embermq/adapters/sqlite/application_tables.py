"""What a tick wants of the tables about readers of embedded application logs.

There is one log, whose offsets are source positions: which one, what a position has besides its committed offset, and
where the record of a mark stands are not asked for.
"""

import sqlite3

from embermq.adapters.sqlite.connection import Now
from embermq.model.tick_writes import TickWrites
from embermq.model.unacknowledged import WhyUnacknowledged

_READER = ("application_inflight", "application_position")
_ALL = (*_READER, "parked_message")

UNACKNOWLEDGED_KEPT_MS = 30 * 86_400_000
UNACKNOWLEDGED_FORGOTTEN = 200
"""Rows that go at a time because they are old: more than come, and quickly done."""
_ENDED = """
INSERT INTO application_unacknowledged
SELECT :generation, COALESCE((SELECT committed_offset FROM application_position WHERE generation = :generation), 0),
    :why, :now
WHERE NOT EXISTS (SELECT 1 FROM application_unacknowledged WHERE generation = :generation AND why = :why)
"""
_FORGET = """
DELETE FROM application_unacknowledged WHERE (generation, "offset", why) IN (
    SELECT generation, "offset", why FROM application_unacknowledged WHERE written_ms < ? ORDER BY written_ms LIMIT ?
)
"""


def apply_to_applications(connection: sqlite3.Connection, writes: TickWrites, now_ms: Now) -> None:
    """Inside the caller's transaction."""
    if writes.restarted_applications:
        _forget(connection, _READER, writes.restarted_applications)
    if writes.application_marks:
        connection.executemany(
            "INSERT OR REPLACE INTO application_inflight VALUES (?, ?, ?, ?)",
            [(mark.generation, mark.offset, mark.packet_id, mark.state) for mark in writes.marks_left()],
        )
    for generation, position in writes.application_positions.items():
        committed = position.positions.committed_offset
        connection.execute(
            "INSERT OR REPLACE INTO application_position VALUES (?, ?, ?, ?)",
            (generation, position.packet_id, committed, position.settled),
        )
        connection.execute(
            'DELETE FROM application_inflight WHERE generation = ? AND "offset" < ?', (generation, committed)
        )
    if writes.unacknowledged or writes.ended_applications:
        _note_unacknowledged(connection, writes, now_ms())
    if writes.ended_applications:
        _forget(connection, _ALL, writes.ended_applications)


def _note_unacknowledged(connection: sqlite3.Connection, writes: TickWrites, now_ms: int) -> None:
    connection.executemany(
        "INSERT OR IGNORE INTO application_unacknowledged VALUES (?, ?, ?, ?)",
        [(one.generation, one.position, one.why, now_ms) for one in writes.unacknowledged],
    )
    connection.executemany(
        _ENDED,
        [
            {"generation": generation, "why": WhyUnacknowledged.ENDED, "now": now_ms}
            for generation in writes.ended_applications
        ],
    )
    connection.execute(_FORGET, (now_ms - UNACKNOWLEDGED_KEPT_MS, UNACKNOWLEDGED_FORGOTTEN))


def _forget(connection: sqlite3.Connection, tables: tuple[str, ...], generations: list[int]) -> None:
    for table in tables:
        connection.executemany(
            f"DELETE FROM {table} WHERE generation = ?", [(generation,) for generation in generations]
        )
