"""Where readers of application logs in Kafka stand, in broker.db."""

import sqlite3

from embermq.adapters.sqlite.connection import to_store_error
from embermq.model.application_positions import ReaderPosition, StoredPositions, decode_floors
from embermq.model.tick_writes import ApplicationMark
from embermq.ports.reader_positions import ReaderFound, ReaderPositions, StoredReader


class SqliteReaderPositions(ReaderPositions):
    """See the port."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def load(self, generation: int, then: ReaderFound) -> None:
        try:
            row = self._connection.execute(
                "SELECT log_id, packet_id, base_offset, committed_offset, floors"
                " FROM application_position WHERE generation = ?",
                (generation,),
            ).fetchone()
            marks = self._connection.execute(
                'SELECT generation, "offset", packet_id, state, source'
                ' FROM application_inflight WHERE generation = ? ORDER BY "offset"',
                (generation,),
            ).fetchall()
        except sqlite3.Error as error:
            then(to_store_error(error, "cannot read where a reader stands"))
        else:
            then(StoredReader(_position(row), tuple(ApplicationMark(*mark) for mark in marks)))


def _position(row: tuple[str, int, int, int, str] | None) -> ReaderPosition | None:
    if row is None:
        return None
    log_id, packet_id, base, committed, floors = row
    return ReaderPosition(log_id, packet_id, StoredPositions(base, committed, decode_floors(floors)))
