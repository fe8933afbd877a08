"""Static data in PostgreSQL, MySQL or MariaDB: accounts, and messages that are kept.

Rules: one dialect of SQLAlchemy Core for all of them, no ORM; each call is one transaction; the schema is made by the
migrations alone. `settings` and `database_url` are read by everybody's configuration and import no driver; all else
is imported only where such a store is configured.
"""

import logging

# It tells about its plugins already when it is imported.
logging.getLogger("alembic").setLevel(logging.WARNING)
