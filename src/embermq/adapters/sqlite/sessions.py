"""Reading session data from broker.db."""

import sqlite3
from collections import defaultdict

from embermq.model.client_type import ClientType
from embermq.model.session import RetainedRow, SessionRow, SubscriptionRow, WillRow
from embermq.model.session_writes import QUEUE_SEQ_STEP
from embermq.ports.sessions import SessionStore, StoredSession, StoredState

SESSION_COLUMNS = (
    "generation, client_id, epoch, client_type, username, version, expiry_interval_s, connected, expires_ms,"
    " created_ms, certificate"
)


class SqliteSessionStore(SessionStore):
    """See the port."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def load(self) -> StoredState:
        query = self._connection.execute
        subscriptions: dict[int, list[SubscriptionRow]] = defaultdict(list)
        for generation, *values in query("SELECT * FROM subscription"):
            subscriptions[generation].append(SubscriptionRow(*values))
        receiving: dict[int, list[int]] = defaultdict(list)
        for generation, packet_id in query("SELECT generation, packet_id FROM receiving"):
            receiving[generation].append(packet_id)
        queues: dict[int, tuple[int, int, int]] = {}
        for generation, last, queued, queued_bytes in query(  # what is done has no record any more
            "SELECT generation, MAX(seq), SUM(state < 3), SUM(length(record)) FROM device_queue GROUP BY generation"
        ):
            queues[generation] = (last + QUEUE_SEQ_STEP, queued, queued_bytes)
        complete_to = query("SELECT MAX(complete_to) FROM session_data").fetchone()[0]
        sessions: list[StoredSession] = []
        for row in map(_session, query(f"SELECT {SESSION_COLUMNS} FROM session ORDER BY generation")):
            generation = row.generation
            seq_next, queued, queued_bytes = queues.get(generation, (QUEUE_SEQ_STEP, 0, 0))
            sessions.append(
                StoredSession(
                    row,
                    tuple(subscriptions.get(generation, ())),
                    tuple(receiving.get(generation, ())),
                    seq_next,
                    queued,
                    queued_bytes,
                    complete_to=complete_to,
                )
            )
        wills = [
            (generation, WillRow(*values))
            for generation, *values in query(
                "SELECT generation, client_id, delay_s, record, due_ms, username, certificate FROM will"
                " ORDER BY generation"
            )
        ]
        meta = dict(query("SELECT name, value FROM meta").fetchall())
        return StoredState(
            sessions,
            wills,
            meta.get("dispatcher_floor", 0),
            meta.get("log_end", 0),
            meta.get("generation_reserved", 1),
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
