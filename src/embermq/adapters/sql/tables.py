"""The tables, of which `schema.py` makes those that are not there.

Names of accounts may have 65,535 bytes, more than an index takes, and MySQL compares texts by rules of its own. So an
account is found by `name_key`, the SHA-256 of its name, and the name itself is only read. A topic may be as long: its
messages are found by `topic_hash` and the topic (formats/message_table.py). A TEXT of MySQL holds 65,535 bytes.

The version of the tables: what a database has, what this program needs, and the way up. There is one version yet, so
that the way up is to make what is not there.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from msgspec import Struct
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    delete,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

from embermq.adapters.sql.database import Database
from embermq.database.database_url import DatabaseUrl, SqlSettings
from embermq.formats.message_table import SERVER_MESSAGES, SERVER_PROGRESS
from embermq.ports.errors import StoreUnavailable

VERSION_TABLE = "embermq_schema"
CHANGES = "user_changes"
"""The row of `meta` that counts changes of accounts: whoever changes one holds it."""
KEY = LargeBinary(32).with_variant(mysql.BINARY(32), "mysql", "mariadb")
LONG_TEXT = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
LONG_BYTES = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
WORD = Text().with_variant(mysql.VARCHAR(64), "mysql", "mariadb")

metadata = MetaData()


def _table(name: str, *columns: Column[Any]) -> Table:
    return Table(
        name,
        metadata,
        *columns,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )


schema = _table(VERSION_TABLE, Column("version_num", String(32), primary_key=True))

users = _table(
    "embermq_users",
    Column("name_key", KEY, primary_key=True),
    Column("name", Text, nullable=False),
    Column("password_hash", Text, nullable=False),
    Column("client_type", SmallInteger, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("scram", Text, nullable=False),
)

user_changes = _table(
    "embermq_user_changes",
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
)

meta = _table(
    "embermq_meta",
    Column("name", WORD, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("value", LargeBinary, nullable=False),
)

messages = _table(
    SERVER_MESSAGES,
    Column("log_id", BigInteger, primary_key=True, autoincrement=False),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("offset", BigInteger, primary_key=True, autoincrement=False),
    Column("topic_hash", BigInteger, nullable=False),
    Column("topic", Text, nullable=False),
    Column("accepted_ms", BigInteger, nullable=False),
    Column("qos", SmallInteger, nullable=False),
    Column("retain", SmallInteger, nullable=False),
    Column("publisher", Text, nullable=False),
    Column("version", SmallInteger, nullable=False),
    Column("expires_ms", BigInteger),
    Column("properties", LONG_TEXT),
    Column("payload", LONG_BYTES, nullable=False),
)

messages_by_topic = Index(
    "embermq_messages_by_topic", messages.c.topic_hash, messages.c.log_id, messages.c.offset
)

message_progress = _table(
    SERVER_PROGRESS,
    Column("log_id", BigInteger, primary_key=True, autoincrement=False),
    Column("reader", WORD, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("entries", BigInteger, nullable=False),
    Column("rejected", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
)


LOG = logging.getLogger("embermq.stores")
VERSION = 1
STATEMENT_S = 3_600.0
"""For statements of an upgrade: a table may be large, and a step has no parts."""
LOCK_S = 60
"""How long one waits for another process that is bringing the same database up."""
LOCK_NOT_AVAILABLE = "55P03"


class State(StrEnum):
    """What a database's schema is to this program."""

    EMPTY = "empty"
    CURRENT = "current"
    NEWER = "newer"


class SchemaStatus(Struct, frozen=True):
    """Version 0 is a database in which nothing of EmberMQ is, or what an upgrade that ended half-way has left."""

    store: str
    state: State
    version: int
    newest: int


def schema_status(url: DatabaseUrl, settings: SqlSettings) -> SchemaStatus:
    """Look, and change nothing. Raises StoreError."""
    with _database(url, settings) as database, database.begin("cannot read the schema version") as connection:
        return _status(url, connection)


def check_schema(url: DatabaseUrl, settings: SqlSettings) -> None:
    """Raise StoreUnavailable, with the way up, unless the database has the very version that this program needs."""
    found = schema_status(url, settings)
    _refuse_newer(found)
    if found.state is not State.CURRENT:
        raise StoreUnavailable(
            f"{found.store} has schema version {found.version}, this version of EmberMQ needs {found.newest}: "
            "type `embermq db upgrade`, or let `stores.static_upgrade` be true"
        )


def upgrade_schema(url: DatabaseUrl, settings: SqlSettings) -> SchemaStatus:
    """Bring the database up to what this program needs, unless it is there already; returns what was found before.

    Of several processes that do so at once, one does it, and the others wait for it. Raises StoreError, of the kind
    StoreUnavailable for a schema that is newer.
    """
    found = schema_status(url, settings)
    if found.state is State.CURRENT:
        return found
    _refuse_newer(found)
    with (
        _database(url, settings, timeout_s=STATEMENT_S) as database,
        database.own_connection("cannot upgrade the schema") as connection,
    ):
        _lock(url, connection)
        found = _status(url, connection)
        _refuse_newer(found)
        if found.state is not State.CURRENT:
            _upgrade(connection)
            LOG.info("%s: schema brought from version %d to %d", found.store, found.version, found.newest)
    return found


def _upgrade(connection: Connection) -> None:
    """May be repeated: MySQL does not take back a step that ended half-way. The version comes last."""
    metadata.create_all(connection)
    messages_by_topic.create(connection, checkfirst=True)
    connection.execute(delete(meta).where(meta.c.name == CHANGES))
    connection.execute(insert(meta).values(name=CHANGES, number=0, value=b""))
    connection.execute(insert(schema).values(version_num=f"{VERSION:04}"))
    connection.commit()


def _status(url: DatabaseUrl, connection: Connection) -> SchemaStatus:
    has_version = inspect(connection).has_table(VERSION_TABLE)
    told = connection.execute(select(schema.c.version_num)).scalar() if has_version else None
    if told is not None and not told.isdecimal():
        raise StoreUnavailable(f"{url.shown} has schema version {told!r}, which EmberMQ does not write")
    version = int(told or 0)
    state = State.NEWER if version > VERSION else State.CURRENT if version else State.EMPTY
    return SchemaStatus(url.shown, state, version, VERSION)


def _refuse_newer(found: SchemaStatus) -> None:
    if found.state is State.NEWER:
        raise StoreUnavailable(
            f"{found.store} has schema version {found.version}, this version of EmberMQ knows up to {found.newest}:"
            " use the newer EmberMQ that wrote it"
        )


@contextmanager
def _database(
    url: DatabaseUrl, settings: SqlSettings, *, timeout_s: float | None = None
) -> Iterator[Database]:
    database = Database(url, settings, timeout_s=timeout_s)
    try:
        yield database
    finally:
        database.close()


def _lock(url: DatabaseUrl, connection: Connection) -> None:
    """Hold a lock of the server's that belongs to this connection, and so goes when that is closed."""
    key = int.from_bytes(hashlib.sha256(f"embermq schema {url.database}".encode()).digest()[:7])
    if url.kind == "postgresql":
        connection.execute(text(f"SET lock_timeout = '{LOCK_S}s'"))
        try:
            connection.execute(text(f"SELECT pg_advisory_lock({key})"))
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", "") == LOCK_NOT_AVAILABLE:
                raise _taken(url) from error
            raise
    elif connection.execute(text(f"SELECT GET_LOCK('embermq {key}', {LOCK_S})")).scalar_one() != 1:
        raise _taken(url)


def _taken(url: DatabaseUrl) -> StoreUnavailable:
    return StoreUnavailable(
        f"{url.shown}: another process has been bringing the schema up for more than {LOCK_S} s; try again"
    )
