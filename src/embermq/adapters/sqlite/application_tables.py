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
_ALL = (*_READER, "parked_message", "application_context")


def apply_to_applications(connection: sqlite3.Connection, writes: TickWrites) -> None:
    """Inside the caller's transaction."""
    if writes.restarted_applications:
        _forget(connection, _READER, writes.restarted_applications)
    if writes.application_marks:
        connection.executemany(
            _MARK,
            [astuple(mark) for mark in writes.application_marks],
        )
    for generation, (client_id, floor) in writes.application_floors.items():
        connection.execute(
            "INSERT INTO application_context VALUES (?, ?, ?)"
            " ON CONFLICT DO UPDATE SET floor_offset = excluded.floor_offset",
            (generation, client_id, floor),
        )
        _settle_below(connection, generation, floor)
    for generation, position in writes.application_positions.items():
        connection.execute(
            "INSERT OR REPLACE INTO application_position VALUES (?, ?, ?, ?, ?, ?)",
            (generation, *_columns(position)),
        )
        _settle_below(connection, generation, position.positions.committed_offset)
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


def _settle_below(connection: sqlite3.Connection, generation: int, floor: int) -> None:
    connection.execute(
        'DELETE FROM application_inflight WHERE generation = ? AND "offset" < ?', (generation, floor)
    )


def _forget(connection: sqlite3.Connection, tables: tuple[str, ...], generations: list[int]) -> None:
    for table in tables:
        connection.executemany(
            f"DELETE FROM {table} WHERE generation = ?", [(generation,) for generation in generations]
        )
