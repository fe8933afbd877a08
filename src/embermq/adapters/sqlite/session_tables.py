"""Session data in SQLite: what a tick's session writes do to the tables."""

import sqlite3

from embermq.model.session import SessionRow
from embermq.model.session_writes import SessionWrites


def apply_session_writes(connection: sqlite3.Connection, writes: SessionWrites, base: int) -> None:
    """Inside the caller's transaction, but for what gathers (`tick_tables`). `base` is the offset of the tick's first
    record."""
    if writes.sessions or writes.subscriptions or writes.wills:
        _apply_to_clients(connection, writes)
    for retained in writes.retained:
        if retained.record:
            row = (retained.topic, base + retained.record_index, retained.record)
            connection.execute("INSERT OR REPLACE INTO retained VALUES (?, ?, ?)", row)
        else:
            connection.execute("DELETE FROM retained WHERE topic = ?", (retained.topic,))
    if writes.retained_expired:
        connection.executemany(
            'DELETE FROM retained WHERE topic = ? AND "offset" = ?', writes.retained_expired
        )
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


def _delete_sessions(connection: sqlite3.Connection, generations: list[int]) -> None:
    for table in ("session", "subscription", "device_queue"):
        connection.executemany(
            f"DELETE FROM {table} WHERE generation = ?", [(generation,) for generation in generations]
        )


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
