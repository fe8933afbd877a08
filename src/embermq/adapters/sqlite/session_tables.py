"""Session data in SQLite: what a tick's session writes do to the tables."""

import sqlite3
import struct

from embermq.model.session import SessionRow
from embermq.model.session_writes import QueueState, SessionWrites


def apply_session_writes(
    connection: sqlite3.Connection, writes: SessionWrites, base: int, floor: int
) -> None:
    """Inside the caller's transaction. `base` is the offset of the tick's first record; what is done with below `floor`
    is not kept."""
    if writes.sessions or writes.subscriptions or writes.wills:
        _apply_to_clients(connection, writes)
    many = connection.executemany
    if writes.receiving:
        many(
            "INSERT OR IGNORE INTO receiving VALUES (?, ?)",
            [(generation, packet_id) for generation, packet_id, _ in writes.receiving],
        )
    if writes.released:
        many("DELETE FROM receiving WHERE generation = ? AND packet_id = ?", writes.released)
    if writes.queue_rows or writes.queue_marks or writes.queue_dropped:
        _apply_to_queues(connection, writes, floor)
    for retained in writes.retained:
        if retained.record:
            row = (retained.topic, base + retained.record_index, retained.record)
            connection.execute("INSERT OR REPLACE INTO retained VALUES (?, ?, ?)", row)
        else:
            connection.execute("DELETE FROM retained WHERE topic = ?", (retained.topic,))
    if writes.retained_expired:
        many('DELETE FROM retained WHERE topic = ? AND "offset" = ?', writes.retained_expired)
    if writes.deleted_sessions:
        _delete_sessions(connection, writes.deleted_sessions)


def _apply_to_clients(connection: sqlite3.Connection, writes: SessionWrites) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO session VALUES (?,?,?,?,?,?,?,?,?,?,?)",
        map(_session_values, writes.sessions),
    )
    for generation, topic_filter, row in writes.subscriptions:
        if row is None:
            connection.execute(
                "DELETE FROM subscription WHERE generation = ? AND topic_filter = ?",
                (generation, topic_filter),
            )
        else:
            connection.execute(
                "INSERT OR REPLACE INTO subscription VALUES (?, ?, ?, ?, ?, ?)",
                (generation, topic_filter, row.options, row.identifier, row.since_offset, row.queue),
            )
    for generation, will in writes.wills:
        if will is None:
            connection.execute("DELETE FROM will WHERE generation = ?", (generation,))
        else:
            values = (generation, will.client_id, will.delay_s, will.due_ms, will.record)
            who = (will.username, will.certificate)
            connection.execute("INSERT OR REPLACE INTO will VALUES (?, ?, ?, ?, ?, ?, ?)", values + who)


def _apply_to_queues(connection: sqlite3.Connection, writes: SessionWrites, floor: int) -> None:
    many = connection.executemany
    if writes.queue_rows:
        many(
            "INSERT OR REPLACE INTO device_queue VALUES (?,?,?,?,?,?,?,?,?)",
            [
                (
                    row.generation,
                    row.seq,
                    row.offset,
                    row.packet_id,
                    row.state,
                    row.flags,
                    row.expires_ms,
                    struct.pack(f">{len(row.identifiers)}I", *row.identifiers),
                    row.record,
                )
                for row in writes.queue_rows
            ],
        )
    marks, done, gone = [], [], []
    for mark in writes.queue_marks:
        if mark.state != QueueState.DONE:
            marks.append((mark.state, mark.packet_id, mark.generation, mark.seq))
        elif mark.offset < floor:
            gone.append((mark.generation, mark.seq))
        else:
            done.append((mark.generation, mark.seq))
    if marks:
        many("UPDATE device_queue SET state = ?, packet_id = ? WHERE generation = ? AND seq = ?", marks)
    if done:
        many("UPDATE device_queue SET state = 3, record = x'' WHERE generation = ? AND seq = ?", done)
    if gone:
        many("DELETE FROM device_queue WHERE generation = ? AND seq = ?", gone)
    if writes.queue_dropped:  # above the floor they stay known, else a crash would store them again
        dropped = [(generation, seq, floor) for generation, seq in writes.queue_dropped]
        many('DELETE FROM device_queue WHERE generation = ? AND seq = ? AND "offset" < ?', dropped)
        many(
            "UPDATE device_queue SET state = 3, record = x'' WHERE generation = ? AND seq = ?",
            writes.queue_dropped,
        )


def _delete_sessions(connection: sqlite3.Connection, generations: list[int]) -> None:
    for table in ("session", "subscription", "receiving", "device_queue"):
        connection.executemany(
            f"DELETE FROM {table} WHERE generation = ?", [(generation,) for generation in generations]
        )


def forget_done(connection: sqlite3.Connection, floor: int) -> None:
    """Deliveries that are done stay known until the floor has passed them."""
    connection.execute('DELETE FROM device_queue WHERE state = 3 AND "offset" < ?', (floor,))


def _session_values(row: SessionRow) -> tuple[int | str, ...]:
    return (
        row.generation,
        row.client_id,
        row.epoch,
        int(row.client_type),
        row.username,
        row.version,
        row.expiry_interval_s,
        int(row.connected),
        row.expires_ms,
        row.created_ms,
        row.certificate,
    )
