"""Static data in PostgreSQL, MySQL or MariaDB: accounts, and messages that are kept.

Rules: one dialect of SQLAlchemy Core for all of them, no ORM; each call is one transaction; `tables.py` alone makes
tables. Imported only where such a store is configured; how a server is reached is in `embermq.database`.
"""
