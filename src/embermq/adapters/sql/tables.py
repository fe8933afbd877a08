"""The tables, and making them.

Names of accounts may have 65,535 bytes, more than an index takes, and MySQL compares texts by rules of its own. So an
account is found by `name_key`, the SHA-256 of its name, and the name itself is only read. A topic may be as long: its
messages are found by `topic_hash` and the topic (formats/message_table.py). A TEXT of MySQL holds 65,535 bytes.

A database says which version its tables have. There is one yet; another is refused.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
LOCK_S = 60
"""How long one waits for another process that is making the tables."""
LOCK_NOT_AVAILABLE = "55P03"


def has_tables(url: DatabaseUrl, settings: SqlSettings) -> bool:
    """Whether all of them are there; changes nothing. Raises StoreError, for those of another version too."""
    with _database(url, settings) as database, database.begin("cannot read the schema version") as connection:
        return _are_there(url, connection)


def make_tables(url: DatabaseUrl, settings: SqlSettings) -> bool:
    """Make the tables, unless they are there already; returns whether they were made. Of several processes that do so
    at once, one does it, and the others wait for it. Raises StoreError."""
    if has_tables(url, settings):
        return False
    with (
        _database(url, settings, timeout_s=2.0 * LOCK_S) as database,
        database.own_connection("cannot make the tables") as connection,
    ):
        _lock(url, connection)
        if _are_there(url, connection):
            return False
        _make(connection)
        LOG.info("%s: tables made", url.shown)
        return True


def _make(connection: Connection) -> None:
    """May be repeated: MySQL does not take back what ended half-way. The version comes last."""
    metadata.create_all(connection)
    messages_by_topic.create(connection, checkfirst=True)
    connection.execute(delete(meta).where(meta.c.name == CHANGES))
    connection.execute(insert(meta).values(name=CHANGES, number=0, value=b""))
    connection.execute(insert(schema).values(version_num=f"{VERSION:04}"))
    connection.commit()


def _are_there(url: DatabaseUrl, connection: Connection) -> bool:
    has_version = inspect(connection).has_table(VERSION_TABLE)
    told = connection.execute(select(schema.c.version_num)).scalar() if has_version else None
    if told is None or told == f"{VERSION:04}":
        return told is not None
    raise StoreUnavailable(
        f"{url.shown} has tables of version {told}, this version of EmberMQ knows {VERSION}: use the EmberMQ that made "
        "them"
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
        f"{url.shown}: another process has been making the tables for more than {LOCK_S} s; try again"
    )
