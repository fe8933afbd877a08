"""Reading the message store, the pipeline's messages.db."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from embermq.adapters.sqlite.connection import open_reader, open_writer, to_store_error
from embermq.formats.message_table import properties_of
from embermq.formats.stored_version import newer_file
from embermq.model.message import Message
from embermq.model.position import offset_of, partition_of, position_of
from embermq.ports.errors import StoreUnavailable
from embermq.ports.message_store import RANGE_BYTES, MessageStore, StoredMessage

_SELECT = (
    "SELECT {place}, topic, payload, qos, retain, publisher, version, accepted_ms, expires_ms, properties"
    " FROM {table}"
)
_COUNT = "SELECT COUNT(*) FROM {table} WHERE accepted_ms < ?"
_PRUNE = """
DELETE FROM {table} WHERE {key} IN (
    SELECT {columns} FROM {table} WHERE accepted_ms < ? ORDER BY {columns} LIMIT ?
)
"""
_TABLES = {False: ("message", '"offset"'), True: ("kafka_message", '"partition", "offset"')}
"""Of the embedded log and of one in Kafka, and by what their rows are found."""

READING = "cannot read the message store"

_Row = tuple[int, int, str, bytes, int, int, str, int, int, int | None, str | None]


class SqliteMessageStore(MessageStore):
    """Empty until the pipeline has made its file. `is_kafka`: of a log in Kafka."""

    def __init__(self, path: Path, *, is_kafka: bool = False) -> None:
        self._path = path
        table, columns = _TABLES[is_kafka]
        key = f"({columns})" if is_kafka else columns
        marks = "(?, ?)" if is_kafka else "?"
        self._is_kafka = is_kafka
        select = _SELECT.format(table=table, place=columns if is_kafka else f"0, {columns}")
        order = f"ORDER BY {columns} LIMIT ?"
        self._get = f"{select} WHERE topic = ? AND {key} = {marks}"
        self._range = f"{select} WHERE topic = ? AND {key} > {marks} {order}"
        self._count = _COUNT.format(table=table)
        self._prune = _PRUNE.format(table=table, key=key, columns=columns)
        self._connection: sqlite3.Connection | None = None

    def get(self, topic: str, offset: int) -> StoredMessage | None:
        found = self._query(self._get, (topic, *self._place(offset)))
        return found[0] if found else None

    def range(self, topic: str, after_offset: int, limit: int) -> list[StoredMessage]:
        return self._query(self._range, (topic, *self._place(after_offset), limit))

    def _place(self, position: int) -> tuple[int, ...]:
        return (partition_of(position), offset_of(position)) if self._is_kafka else (position,)

    def count_older(self, than_ms: int) -> int:
        connection = self._open()
        if connection is None:
            return 0
        try:
            return int(connection.execute(self._count, (than_ms,)).fetchone()[0])
        except sqlite3.Error as error:
            raise to_store_error(error, READING) from error

    def prune(self, older_than_ms: int, rows_max: int) -> int:
        """Beside the pipeline's own writer: each waits for the other's transaction, which are short."""
        if not self._path.exists():
            return 0
        connection = open_writer(self._path, synchronous="FULL")
        try:
            problem = newer_file(self._path.name, connection.execute("PRAGMA user_version").fetchone()[0])
            if problem:
                raise StoreUnavailable(problem)
            return connection.execute(self._prune, (older_than_ms, rows_max)).rowcount
        except sqlite3.Error as error:
            raise to_store_error(error, "cannot prune the message store") from error
        finally:
            connection.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _query(self, sql: str, parameters: tuple[str | int, ...]) -> list[StoredMessage]:
        connection = self._open()
        if connection is None:
            return []
        try:
            with closing(connection.execute(sql, parameters)) as rows:
                return list(_within_bytes(rows))
        except sqlite3.Error as error:
            if "no such table" in str(error):  # the pipeline is about to make it
                return []
            raise to_store_error(error, READING) from error

    def _open(self) -> sqlite3.Connection | None:
        """None until the pipeline has made its file."""
        if self._connection is None and self._path.exists():
            self._connection = open_reader(self._path)
        return self._connection


def _within_bytes(rows: Iterable[_Row]) -> Iterator[StoredMessage]:
    """Row by row, until they have come to `RANGE_BYTES`: SQLite makes the next one when it is asked for."""
    room = RANGE_BYTES
    for row in rows:
        yield _stored(row)
        room -= len(row[3]) + len(row[-1] or "")
        if room <= 0:
            return


def _stored(row: _Row) -> StoredMessage:
    (
        partition,
        offset,
        topic,
        payload,
        qos,
        retain,
        publisher,
        version,
        accepted_ms,
        expires_ms,
        properties,
    ) = row
    message = Message(
        topic,
        payload,
        qos,
        bool(retain),
        publisher,
        version,
        accepted_ms,
        expires_ms or 0,
        properties_of(properties),
    )
    return StoredMessage(position_of(partition, offset), message)
