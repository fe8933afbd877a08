"""Reading session data from broker.db."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from embermq.adapters.sqlite.tick_tables import REPLAY_PREFIX, TickTables
from embermq.model.client_type import ClientType
from embermq.model.session import RetainedRow, SessionRow, SubscriptionRow, WillRow
from embermq.model.session_writes import QUEUE_SEQ_STEP
from embermq.ports.sessions import SessionStore, StoredSession, StoredSessions, StoredState

SESSION_COLUMNS = (
    "generation, client_id, epoch, client_type, username, version, expiry_interval_s, connected, expires_ms,"
    " created_ms, certificate"
)
_NO_MORE: tuple[int, Iterator[tuple[Any, ...]]] = (-1, iter(()))
"""Behind the last subscription."""


class _SqliteSessions(StoredSessions):
    """Read with two cursors side by side: a million sessions are never in memory as rows."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT COUNT(*) FROM session").fetchone()[0])

    def __iter__(self) -> Iterator[StoredSession]:
        query = self._connection.execute
        receiving: dict[int, list[int]] = defaultdict(list)
        for generation, packet_id in query("SELECT generation, packet_id FROM receiving"):
            receiving[generation].append(packet_id)
        queues: dict[int, tuple[int, int, int]] = {}
        for generation, last, queued, queued_bytes in query(  # what is done has no record any more
            "SELECT generation, MAX(seq), SUM(state < 3), SUM(length(record)) FROM device_queue GROUP BY generation"
        ):
            queues[generation] = (last + QUEUE_SEQ_STEP, queued, queued_bytes)
        subscriptions = groupby(
            query("SELECT * FROM subscription ORDER BY generation DESC, topic_filter DESC"), itemgetter(0)
        )
        generation, found = next(subscriptions, _NO_MORE)
        for row in map(_session, query(f"SELECT {SESSION_COLUMNS} FROM session ORDER BY generation DESC")):
            while generation > row.generation:  # of a session that is no more
                generation, found = next(subscriptions, _NO_MORE)
            is_own = generation == row.generation
            seq_next, count, count_bytes = queues.get(row.generation, (QUEUE_SEQ_STEP, 0, 0))
            yield StoredSession(
                row,
                tuple(SubscriptionRow(*values) for _, *values in found) if is_own else (),
                tuple(receiving.get(row.generation, ())),
                seq_next,
                count,
                count_bytes,
            )


class SqliteSessionStore(SessionStore):
    """See the port."""

    def __init__(self, tables: TickTables) -> None:
        self._tables = tables
        self._connection = tables.connection

    def load(self) -> StoredState:
        self._tables.write()
        query = self._connection.execute
        wills = [
            (generation, WillRow(*values))
            for generation, *values in query(
                "SELECT generation, client_id, delay_s, record, due_ms, username, certificate FROM will"
                " ORDER BY generation"
            )
        ]
        meta = dict(query("SELECT name, value FROM meta").fetchall())
        return StoredState(
            _SqliteSessions(self._connection),
            wills,
            meta.get("dispatcher_floor", 0),
            meta.get("log_end", 0),
            meta.get("generation_reserved", 1),
            {
                name.removeprefix(REPLAY_PREFIX): number
                for name, number in meta.items()
                if name.startswith(REPLAY_PREFIX)
            },
        )

    def load_retained(self) -> list[RetainedRow]:
        return [
            RetainedRow(*row)
            for row in self._connection.execute('SELECT topic, "offset", record FROM retained')
        ]


def _session(row: tuple[int, str, int, int, str, int, int, int, int, int, str]) -> SessionRow:
    (
        generation,
        client_id,
        epoch,
        client_type,
        username,
        version,
        expiry_s,
        connected,
        expires_ms,
        created_ms,
        certificate,
    ) = row
    return SessionRow(
        client_id,
        generation,
        epoch,
        ClientType(client_type),
        username,
        version,
        expiry_s,
        bool(connected),
        expires_ms,
        created_ms,
        certificate,
    )
