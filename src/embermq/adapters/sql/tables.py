"""The tables as statements speak of them; the migrations make them.

Names of accounts may have 65,535 bytes, more than an index takes, and MySQL compares texts by rules of its own. So an
account is found by `name_key`, the SHA-256 of its name, and the name itself is only read. A topic may be as long: its
messages are found by `topic_hash` and the topic (formats/message_table.py).
"""

from sqlalchemy import BigInteger, Boolean, Column, Integer, LargeBinary, MetaData, SmallInteger, Table, Text

from embermq.formats.message_table import SERVER_MESSAGES, SERVER_PROGRESS

metadata = MetaData()

users = Table(
    "embermq_users",
    metadata,
    Column("name_key", LargeBinary(32), primary_key=True),
    Column("name", Text, nullable=False),
    Column("password_hash", Text, nullable=False),
    Column("client_type", SmallInteger, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("scram", Text, nullable=False),
)

user_changes = Table(
    "embermq_user_changes",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
)

meta = Table(
    "embermq_meta",
    metadata,
    Column("name", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("value", LargeBinary, nullable=False),
)

messages = Table(
    SERVER_MESSAGES,
    metadata,
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
    Column("properties", Text),
    Column("payload", LargeBinary, nullable=False),
)

message_progress = Table(
    SERVER_PROGRESS,
    metadata,
    Column("log_id", BigInteger, primary_key=True, autoincrement=False),
    Column("reader", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("entries", BigInteger, nullable=False),
    Column("rejected", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
)
