"""What a tick wants of the tables of sessions: data, received packet ids, readers of application logs.

Packet ids of incoming QoS 2 PUBLISHes on their way into broker.db: one that comes and is released between two
commits is never written.

What gathers here is part of the open transaction, and goes with it when that is taken back.

What a tick wants of the tables about readers of embedded application logs. There is one log, whose offsets are source
positions: which one, what a position has besides its committed offset, and where the record of a mark stands are not
asked for.
"""

import sqlite3
from collections.abc import Iterable

from embermq.adapters.sqlite.connection import Now
from embermq.model.session import SessionRow
from embermq.model.session_writes import SessionWrites
from embermq.model.tick_writes import TickWrites
from embermq.model.unacknowledged import WhyUnacknowledged

ReceivedId = tuple[int, int]
"""Generation of the session, packet id."""


class ReceivedIds:
    """Works inside the caller's transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.clear()

    def clear(self) -> None:
        """The transaction was taken back: the table has what it had."""
        self._stored: dict[int, set[int]] = {}
        """What the table has, by generation."""
        for generation, packet_id in self._connection.execute("SELECT generation, packet_id FROM receiving"):
            self._stored.setdefault(generation, set()).add(packet_id)
        self._come: set[ReceivedId] = set()
        self._gone: set[ReceivedId] = set()

    def gather(self, writes: SessionWrites) -> None:
        """Take what a tick wants of them."""
        come, gone, stored = self._come, self._gone, self._stored
        for generation, packet_id, _ in writes.receiving:
            if generation not in stored or packet_id not in stored[generation]:
                come.add((generation, packet_id))
            else:
                gone.discard((generation, packet_id))
        for one in writes.released:
            come.discard(one)
            if one[0] in stored and one[1] in stored[one[0]]:
                gone.add(one)

    def forget(self, generations: Iterable[int]) -> None:
        """Sessions have ended."""
        ended = set(generations)
        for gathered in (self._come, self._gone):
            gathered.difference_update({one for one in gathered if one[0] in ended})
        for generation in ended:
            if self._stored.pop(generation, None) is not None:
                self._connection.execute("DELETE FROM receiving WHERE generation = ?", (generation,))

    def write(self) -> None:
        """All that has gathered."""
        many, stored = self._connection.executemany, self._stored
        if self._come:
            many("INSERT INTO receiving VALUES (?, ?)", self._come)
            for generation, packet_id in self._come:
                stored.setdefault(generation, set()).add(packet_id)
            self._come = set()
        if self._gone:
            many("DELETE FROM receiving WHERE generation = ? AND packet_id = ?", self._gone)
            for generation, packet_id in self._gone:
                left = stored[generation]
                left.discard(packet_id)
                if not left:
                    del stored[generation]
            self._gone = set()


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
