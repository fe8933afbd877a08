"""Reading the message store, the pipeline's messages.db."""

import sqlite3
from base64 import b64decode
from pathlib import Path

import msgspec
from msgspec import Struct

from embermq.adapters.sqlite.connection import open_reader, to_store_error
from embermq.model.message import Message
from embermq.ports.message_store import MessageStore, StoredMessage
from embermq.protocol.properties import Properties

_SELECT = (
    'SELECT "offset", topic, payload, qos, retain, publisher, version, accepted_ms, expires_ms, properties'
    " FROM message"
)

_Row = tuple[int, str, bytes, int, int, str, int, int, int | None, str | None]


class _Pair(Struct):
    name: str
    value: str


class _Stored(Struct):
    """The JSON of `properties`; see model/messages.sql."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: str | None = None
    user_properties: list[_Pair] = []


class SqliteMessageStore(MessageStore):
    """Empty until the pipeline has made its file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def get(self, topic: str, offset: int) -> StoredMessage | None:
        found = self._query(f'{_SELECT} WHERE topic = ? AND "offset" = ?', (topic, offset))
        return found[0] if found else None

    def range(self, topic: str, after_offset: int, limit: int) -> list[StoredMessage]:
        return self._query(
            f'{_SELECT} WHERE topic = ? AND "offset" > ? ORDER BY "offset" LIMIT ?',
            (topic, after_offset, limit),
        )

    def close(self) -> None:
        """Release the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _query(self, sql: str, parameters: tuple[str | int, ...]) -> list[StoredMessage]:
        if self._connection is None:
            if not self._path.exists():
                return []
            self._connection = open_reader(self._path)
        try:
            return [_stored(row) for row in self._connection.execute(sql, parameters)]
        except sqlite3.Error as error:
            raise to_store_error(error, "cannot read the message store") from error


def _stored(row: _Row) -> StoredMessage:
    offset, topic, payload, qos, retain, publisher, version, accepted_ms, expires_ms, properties = row
    message = Message(
        topic,
        payload,
        qos,
        bool(retain),
        publisher,
        version,
        accepted_ms,
        expires_ms or 0,
        _properties(properties),
    )
    return StoredMessage(offset, message)


def _properties(text: str | None) -> Properties | None:
    if text is None:
        return None
    stored = msgspec.json.decode(text, type=_Stored)
    return Properties(
        payload_format_indicator=stored.payload_format_indicator,
        message_expiry_interval=stored.message_expiry_interval,
        content_type=stored.content_type,
        response_topic=stored.response_topic,
        correlation_data=b64decode(stored.correlation_data) if stored.correlation_data is not None else None,
        user_properties=tuple((pair.name, pair.value) for pair in stored.user_properties),
    )
