"""Static data in PostgreSQL, MySQL or MariaDB: accounts, and messages that are kept.

Rules: one dialect of SQLAlchemy Core for all of them, no ORM; each call is one transaction; the schema is made by the
migrations alone. Imported only where such a store is configured; how a server is reached is in `embermq.database`.
"""

import logging

# It tells about its plugins already when it is imported.
logging.getLogger("alembic").setLevel(logging.WARNING)
