"""What Alembic runs: the migrations over the connection that `schema.py` has opened and locked."""

from alembic import context

from embermq.adapters.sql.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
