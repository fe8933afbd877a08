"""The tables of 0.1.0: accounts, their changes in order, what belongs to the store as a whole, and the message store.

The message store has QoS 1 and 2 messages by position, and how far the pipeline has come with them. A topic has up to
65,535 bytes, which is what a TEXT of MySQL holds and more than an index takes: hence its hash.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None

KEY = sa.LargeBinary(32).with_variant(mysql.BINARY(32), "mysql", "mariadb")
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT, "mysql", "mariadb")
LONG_BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB, "mysql", "mariadb")
WORD = sa.Text().with_variant(mysql.VARCHAR(64), "mysql", "mariadb")
OPTIONS = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    """May be repeated: MySQL does not take back a step that ended half-way."""
    _make_accounts()
    _make_message_store()


def _make_accounts() -> None:
    op.create_table(
        "embermq_users",
        sa.Column("name_key", KEY, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("password_hash", sa.Text, nullable=False),
        sa.Column("client_type", sa.SmallInteger, nullable=False),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("scram", sa.Text, nullable=False),
        if_not_exists=True,
        **OPTIONS,
    )
    op.create_table(
        "embermq_user_changes",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
        if_not_exists=True,
        **OPTIONS,
    )
    op.create_table(
        "embermq_meta",
        sa.Column("name", WORD, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
        if_not_exists=True,
        **OPTIONS,
    )
    op.execute("DELETE FROM embermq_meta WHERE name = 'user_changes'")
    op.execute("INSERT INTO embermq_meta VALUES ('user_changes', 0, '')")


def _make_message_store() -> None:
    op.create_table(
        "embermq_messages",
        sa.Column("log_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("offset", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("topic_hash", sa.BigInteger, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("accepted_ms", sa.BigInteger, nullable=False),
        sa.Column("qos", sa.SmallInteger, nullable=False),
        sa.Column("retain", sa.SmallInteger, nullable=False),
        sa.Column("publisher", sa.Text, nullable=False),
        sa.Column("version", sa.SmallInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger),
        sa.Column("properties", LONG_TEXT),
        sa.Column("payload", LONG_BYTES, nullable=False),
        if_not_exists=True,
        **OPTIONS,
    )
    there = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("embermq_messages")}
    if "embermq_messages_by_topic" not in there:
        op.create_index("embermq_messages_by_topic", "embermq_messages", ["topic_hash", "log_id", "offset"])
    op.create_table(
        "embermq_message_progress",
        sa.Column("log_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("reader", WORD, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("entries", sa.BigInteger, nullable=False),
        sa.Column("rejected", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        if_not_exists=True,
        **OPTIONS,
    )
