"""What a tick wants of the tables about readers of application logs."""

import sqlite3

from msgspec.structs import astuple

from embermq.model.application_positions import ReaderPosition, encode_floors
from embermq.model.tick_writes import TickWrites

_MARK = """
INSERT INTO application_inflight VALUES (?, ?, ?, ?, ?)
ON CONFLICT (generation, "offset") DO UPDATE SET packet_id = excluded.packet_id, state = excluded.state
"""
"""Where the record stands was said when it was sent."""
_READER = ("application_inflight", "application_position")
_ALL = (*_READER, "parked_message")


def apply_to_applications(connection: sqlite3.Connection, writes: TickWrites) -> None:
    """Inside the caller's transaction."""
    if writes.restarted_applications:
        _forget(connection, _READER, writes.restarted_applications)
    if writes.application_marks:
        connection.executemany(
            _MARK,
            [astuple(mark) for mark in writes.application_marks],
        )
    for generation, position in writes.application_positions.items():
        connection.execute(
            "INSERT OR REPLACE INTO application_position VALUES (?, ?, ?, ?, ?, ?)",
            (generation, *_columns(position)),
        )
        connection.execute(
            'DELETE FROM application_inflight WHERE generation = ? AND "offset" < ?',
            (generation, position.positions.committed_offset),
        )
    if writes.ended_applications:
        _forget(connection, _ALL, writes.ended_applications)


def _columns(position: ReaderPosition) -> tuple[str | int, ...]:
    found = position.positions
    return (
        position.log_id,
        position.packet_id,
        found.base_offset,
        found.committed_offset,
        encode_floors(found.floors),
    )


def _forget(connection: sqlite3.Connection, tables: tuple[str, ...], generations: list[int]) -> None:
    for table in tables:
        connection.executemany(
            f"DELETE FROM {table} WHERE generation = ?", [(generation,) for generation in generations]
        )
