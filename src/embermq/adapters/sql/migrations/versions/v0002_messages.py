"""The message store: QoS 1 and 2 messages by position, and how far the pipeline has come with them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"

LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT, "mysql", "mariadb")
LONG_BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB, "mysql", "mariadb")
WORD = sa.Text().with_variant(mysql.VARCHAR(64), "mysql", "mariadb")
OPTIONS = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    """Each step may be repeated: MySQL does not take back a step that ended half-way.

    A topic has up to 65,535 bytes, which is what a TEXT of MySQL holds and more than an index takes: hence its hash.
    """
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
