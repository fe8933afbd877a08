"""Where readers of embedded application logs stand, in broker.db."""

import sqlite3

from embermq.adapters.sqlite.connection import to_store_error
from embermq.model.application_positions import ReaderPosition, StoredPositions
from embermq.model.tick_writes import ApplicationMark
from embermq.ports.reader_positions import ReaderFound, ReaderPositions, StoredReader


class SqliteReaderPositions(ReaderPositions):
    """See the port."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def load(self, generation: int, then: ReaderFound) -> None:
        try:
            row = self._connection.execute(
                "SELECT packet_id, committed_offset, settled FROM application_position WHERE generation = ?",
                (generation,),
            ).fetchone()
            marks = self._connection.execute(
                'SELECT generation, "offset", packet_id, state'
                ' FROM application_inflight WHERE generation = ? ORDER BY "offset"',
                (generation,),
            ).fetchall()
        except sqlite3.Error as error:
            then(to_store_error(error, "cannot read where a reader stands"))
        else:
            then(StoredReader(_position(row), tuple(ApplicationMark(*mark) for mark in marks)))


def _position(row: tuple[int, int, int] | None) -> ReaderPosition | None:
    if row is None:
        return None
    packet_id, committed, settled = row
    return ReaderPosition("", packet_id, StoredPositions(committed, committed), settled=settled)
