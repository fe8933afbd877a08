"""The tables, of which `schema.py` makes those that are not there.

Names of accounts may have 65,535 bytes, more than an index takes, and MySQL compares texts by rules of its own. So an
account is found by `name_key`, the SHA-256 of its name, and the name itself is only read. A topic may be as long: its
messages are found by `topic_hash` and the topic (formats/message_table.py). A TEXT of MySQL holds 65,535 bytes.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql

from embermq.formats.message_table import SERVER_MESSAGES, SERVER_PROGRESS

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
