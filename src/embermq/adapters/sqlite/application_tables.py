"""What a tick wants of the tables about readers of embedded application logs.

There is one log, whose offsets are source positions: which one, what a position has besides its committed offset, and
where the record of a mark stands are not asked for.
"""

import sqlite3

from embermq.model.tick_writes import TickWrites

_READER = ("application_inflight", "application_position")
_ALL = (*_READER, "parked_message")


def apply_to_applications(connection: sqlite3.Connection, writes: TickWrites) -> None:
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
            "INSERT OR REPLACE INTO application_position VALUES (?, ?, ?)",
            (generation, position.packet_id, committed),
        )
        connection.execute(
            'DELETE FROM application_inflight WHERE generation = ? AND "offset" < ?', (generation, committed)
        )
    if writes.ended_applications:
        _forget(connection, _ALL, writes.ended_applications)


def _forget(connection: sqlite3.Connection, tables: tuple[str, ...], generations: list[int]) -> None:
    for table in tables:
        connection.executemany(
            f"DELETE FROM {table} WHERE generation = ?", [(generation,) for generation in generations]
        )
