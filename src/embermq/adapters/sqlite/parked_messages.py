"""Messages kept aside for applications, in broker.db."""

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from embermq.adapters.sqlite.connection import to_store_error
from embermq.model.parked_message import ParkedChange, ParkedMessage, ParkedStage, ParkedState, ParkedWrite
from embermq.ports.errors import StoreError
from embermq.ports.parked_messages import ParkedFound, ParkedMessages

_STATE = "generation, number, stage, state, packet_id, qos"
_REST = "parked_ms, attempts, retain, identifiers, topic, payload_bytes"


class SqliteParkedMessages(ParkedMessages):
    """See the port."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def load(self) -> list[ParkedState]:
        rows = self._rows(f"SELECT {_STATE} FROM parked_message ORDER BY generation, number", ())
        return [ParkedState(*row) for row in rows]

    def read(self, generation: int, numbers: Sequence[int], bytes_max: int, then: ParkedFound) -> None:
        found: dict[int, ParkedMessage | None] = {}
        size, record = 0, "record" if bytes_max else "x''"
        try:
            for number in numbers:
                rows = self._rows(
                    f"SELECT {_STATE}, {_REST}, {record} FROM parked_message"
                    " WHERE generation = ? AND number = ? AND stage <> ?",
                    (generation, number, ParkedStage.DELETED),
                )
                message = found[number] = _message(rows[0]) if rows else None
                size += len(message.record) if message is not None else 0
                if 0 < bytes_max <= size:
                    break
        except StoreError as error:
            then(error)
        else:
            then(found)

    def _rows(self, statement: str, arguments: tuple[int, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, arguments).fetchall()
        except sqlite3.Error as error:
            raise to_store_error(error, "cannot read parked messages") from error


def apply_parked(connection: sqlite3.Connection, writes: Iterable[ParkedWrite]) -> None:
    """Within the tick's transaction."""
    run = connection.execute
    for write in writes:
        if isinstance(write, ParkedMessage):
            at, ids = write.at, write.identifiers
            run(
                "INSERT OR REPLACE INTO parked_message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(at.generation, at.number, at.stage, at.state, at.packet_id, at.qos),
                    *(write.parked_ms, write.attempts, write.retain, struct.pack(f">{len(ids)}I", *ids)),
                    *(write.topic, write.payload_bytes, write.record),
                ),
            )
        elif isinstance(write, ParkedChange):
            at = write.at
            run(
                "UPDATE parked_message SET stage = ?, state = ?, packet_id = ? WHERE generation = ? AND number = ?",
                (at.stage, at.state, at.packet_id, at.generation, at.number),
            )
            if at.stage == ParkedStage.DELETED:
                run(
                    "UPDATE parked_message SET record = x'', topic = '', payload_bytes = 0, identifiers = x''"
                    " WHERE generation = ? AND number = ?",
                    (at.generation, at.number),
                )
        else:
            run(
                "DELETE FROM parked_message WHERE generation = ? AND number = ?",
                (write.generation, write.number),
            )


def _message(row: Sequence[Any]) -> ParkedMessage:
    parked_ms, attempts, retain, ids, topic, payload_bytes, record = row[6:]
    identifiers = struct.unpack(f">{len(ids) // 4}I", ids)
    return ParkedMessage(
        ParkedState(*row[:6]),
        parked_ms,
        attempts,
        bool(retain),
        identifiers,
        topic,
        payload_bytes,
        bytes(record),
    )
