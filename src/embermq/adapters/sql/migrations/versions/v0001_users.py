"""Accounts, their changes in order, and what belongs to the store as a whole."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None

KEY = sa.LargeBinary(32).with_variant(mysql.BINARY(32), "mysql", "mariadb")
WORD = sa.Text().with_variant(mysql.VARCHAR(64), "mysql", "mariadb")
OPTIONS = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    """Each step may be repeated: MySQL does not take back a step that ended half-way."""
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
