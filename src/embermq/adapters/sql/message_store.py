"""The message store on PostgreSQL, MySQL or MariaDB, as the broker and people read it."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, delete, func, or_, select

from embermq.adapters.sql.database import Database
from embermq.adapters.sql.tables import message_progress, messages
from embermq.formats.message_table import ARCHIVE, properties_of, topic_hash
from embermq.model.message import Message
from embermq.model.position import offset_of, partition_of, position_of
from embermq.ports.log_readers import LogReader, LogReaders
from embermq.ports.message_store import RANGE_BYTES, MessageStore, StoredMessage

_PLACE = (messages.c.partition, messages.c.offset)
_SELECTED = (
    *_PLACE,
    messages.c.topic,
    messages.c.payload,
    messages.c.qos,
    messages.c.retain,
    messages.c.publisher,
    messages.c.version,
    messages.c.accepted_ms,
    messages.c.expires_ms,
    messages.c.properties,
)
_BYTES = func.octet_length(messages.c.payload) + func.coalesce(func.octet_length(messages.c.properties), 0)
_READING = "cannot read the message store"


class SqlMessageStore(MessageStore):
    """Reads what the pipeline has put there from one message log; other logs may have messages beside it."""

    def __init__(self, database: Database, log_id: int) -> None:
        self._database = database
        self._log_id = log_id

    def get(self, topic: str, offset: int) -> StoredMessage | None:
        found = self._read(
            self._of(topic).where(
                messages.c.partition == partition_of(offset), messages.c.offset == offset_of(offset)
            )
        )
        return _stored(found[0]) if found else None

    def range(self, topic: str, after_offset: int, limit: int) -> list[StoredMessage]:
        """A driver has the whole answer in memory: so it is asked first how large the messages are."""
        wanted = self._of(topic).where(_from(after_offset + 1)).order_by(*_PLACE)
        room, many = RANGE_BYTES, 0
        for row in self._read(wanted.with_only_columns(_BYTES).limit(limit)):
            many += 1
            room -= row[0]
            if room <= 0:
                break
        return [_stored(row) for row in self._read(wanted.limit(many))] if many else []

    def count_older(self, than_ms: int) -> int:
        rows = self._read(select(func.count()).select_from(messages).where(self._older(than_ms)))
        return int(rows[0][0])

    def prune(self, older_than_ms: int, rows_max: int) -> int:
        oldest = (
            select(messages.c.partition, messages.c.offset)
            .where(self._older(older_than_ms))
            .order_by(messages.c.partition, messages.c.offset)
            .limit(rows_max)
        )
        deleted = 0
        with self._database.begin("cannot prune the message store") as connection:
            # The last one of each partition, since they come in order.
            bounds: dict[int, int] = {row.partition: row.offset for row in connection.execute(oldest)}
            for partition, last in bounds.items():
                within = (messages.c.partition == partition) & (messages.c.offset <= last)
                deleted += connection.execute(
                    delete(messages).where(within & self._older(older_than_ms))
                ).rowcount
        return deleted

    def close(self) -> None:
        self._database.close()

    def _of(self, topic: str) -> Select[Any]:
        return select(*_SELECTED).where(
            messages.c.topic_hash == topic_hash(topic),
            messages.c.topic == topic,
            messages.c.log_id == self._log_id,
        )

    def _older(self, than_ms: int) -> ColumnElement[bool]:
        return (messages.c.log_id == self._log_id) & (messages.c.accepted_ms < than_ms)

    def _read(self, query: Select[Any]) -> Sequence[Row[Any]]:
        with self._database.begin(_READING) as connection:
            return connection.execute(query).all()


class SqlLogReaders(LogReaders):
    """How far the pipeline has come with a message log, as the server itself has it; asked when the broker starts."""

    def __init__(self, database: Database, log_id: int) -> None:
        self._database = database
        self._log_id = log_id

    def positions(self) -> list[LogReader]:
        progress = message_progress.c
        query = select(progress.reader, progress.next_offset, progress.updated_ms).where(
            progress.log_id == self._log_id
        )
        with self._database.begin("cannot read what the pipeline has confirmed") as connection:
            return [LogReader(*row) for row in connection.execute(query)]


def archived_positions(database: Database, log_id: int) -> dict[int, int]:
    """Partition -> the first offset that the archive of this log does not have. Raises StoreError."""
    progress = message_progress.c
    query = select(progress.partition, progress.next_offset).where(
        (progress.log_id == log_id) & (progress.reader == ARCHIVE)
    )
    with database.begin("cannot read what the archive has") as connection:
        return {int(row[0]): int(row[1]) for row in connection.execute(query)}


def _from(position: int) -> ColumnElement[bool]:
    """Messages at this position and behind it."""
    partition = partition_of(position)
    return or_(
        messages.c.partition > partition,
        and_(messages.c.partition == partition, messages.c.offset >= offset_of(position)),
    )


def _stored(row: Row[Any]) -> StoredMessage:
    message = Message(
        row.topic,
        bytes(row.payload),
        row.qos,
        bool(row.retain),
        row.publisher,
        row.version,
        row.accepted_ms,
        row.expires_ms or 0,
        properties_of(row.properties),
    )
    return StoredMessage(position_of(row.partition, row.offset), message)
