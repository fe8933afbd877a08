"""The tables as statements speak of them; the migrations make them.

Names of accounts may have 65,535 bytes, more than an index takes, and MySQL compares texts by rules of its own. So an
account is found by `name_key`, the SHA-256 of its name, and the name itself is only read.
"""

from sqlalchemy import BigInteger, Boolean, Column, LargeBinary, MetaData, SmallInteger, Table, Text

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
