"""Opening the store of static data that the settings name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embermq.adapters.sqlite.users import SqliteUsers
from embermq.app.config import Settings
from embermq.app.errors import StartError, missing
from embermq.app.settings import SQLITE
from embermq.database.database_url import DatabaseUrl, parse_url
from embermq.ports.errors import StoreError
from embermq.ports.users import Users

FILE_NAME = "users.db"


def open_users(settings: Settings) -> Users:
    """The accounts. A data directory that holds them is made when it is missing. Raises StartError or StoreError."""
    url = static_url(settings)
    return open_sqlite_users(Path(settings.data_dir)) if url is None else _open_sql_users(settings, url)


def open_sqlite_users(data_dir: Path) -> Users:
    """Those of a data directory, which is made when it is missing. Raises StartError or StoreError."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(
            f"cannot make the data directory {data_dir}: {error.strerror}; name another with --data-dir"
        ) from error
    return SqliteUsers(data_dir / FILE_NAME)


def static_url(settings: Settings) -> DatabaseUrl | None:
    """None for the data directory."""
    return None if settings.stores.static == SQLITE else parse_url(settings.stores.static)


def _open_sql_users(settings: Settings, url: DatabaseUrl) -> Users:
    with named_store(url):
        from embermq.adapters.sql.database import Database
        from embermq.adapters.sql.tables import make_tables
        from embermq.adapters.sql.users import SqlUsers

        make_tables(url, settings.sql)
        return SqlUsers(Database(url, settings.sql))


@contextmanager
def named_store(url: DatabaseUrl) -> Iterator[None]:
    """Every problem says which setting it comes from; its libraries are an extra."""
    try:
        yield
    except ImportError as error:
        raise StartError(f"stores.static: {url.shown} needs {missing(error)}") from error
    except StoreError as error:
        raise StartError(f"stores.static: {error}") from error
