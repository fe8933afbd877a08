"""Accounts in a database of a test's own."""

from __future__ import annotations

from embermq.adapters.sql.database import Database
from embermq.adapters.sql.tables import make_tables
from embermq.adapters.sql.users import SqlUsers
from embermq.database.database_url import SqlSettings, parse_url


def open_sql_users(url: str, settings: SqlSettings | None = None, *, is_current: bool = False) -> SqlUsers:
    """The accounts behind a URL, as a process opens them that starts; one whose tables are there needs no look."""
    settings = settings or SqlSettings()
    if not is_current:
        make_tables(parse_url(url), settings)
    return SqlUsers(Database(parse_url(url), settings))
