"""What the broker of a data directory has noted about data that it keeps elsewhere, for commands that were not told."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from msgspec import Struct

from embermq.adapters.sqlite.connection import open_reader
from embermq.adapters.sqlite.log_state import LOG_APART
from embermq.adapters.sqlite.tick_tables import STATIC_PLACE
from embermq.app.config import Settings
from embermq.app.errors import UserError
from embermq.app.settings import SQLITE
from embermq.ports.errors import StoreError

GIVE = "give the --config or --set of its broker"


class NotedPlaces(Struct, frozen=True, kw_only=True):
    """Places that the last run noted; nothing where none has been."""

    is_log_apart: bool | None = None
    """Whether the message log is in a Kafka; None when there is no log yet."""
    static: str = ""
    """Where accounts and archived messages are, without credentials; "" for the data directory."""


def noted_places(data_dir: Path) -> NotedPlaces:
    """Of a file that cannot be read nothing is known: whoever needs it will say so."""
    path = data_dir / "broker.db"
    if not path.is_file():
        return NotedPlaces()
    found: dict[str, object] = {}
    with suppress(sqlite3.Error, StoreError), closing(open_reader(path)) as connection:
        found = dict(connection.execute("SELECT name, value FROM meta"))
    if not found:
        return NotedPlaces()
    return NotedPlaces(is_log_apart=bool(found.get(LOG_APART)), static=str(found.get(STATIC_PLACE, "")))


def static_elsewhere(settings: Settings) -> str:
    """Where the broker has its static data, when these settings do not say so; "" when they do."""
    return noted_places(Path(settings.data_dir)).static if settings.stores.static == SQLITE else ""


def check_archive(settings: Settings) -> None:
    """Raises UserError when these settings do not lead to where the broker has its archived messages."""
    data_dir = Path(settings.data_dir)
    noted = noted_places(data_dir)
    if noted.is_log_apart is not None and noted.is_log_apart != (settings.stores.log != SQLITE):
        where = "a Kafka" if noted.is_log_apart else "it"
        raise UserError(f"stores.log: the message log of {data_dir} is in {where}; {GIVE}")
    if noted.static and settings.stores.static == SQLITE:
        raise UserError(f"stores.static: the messages of {data_dir} are in {noted.static}; {GIVE}")
