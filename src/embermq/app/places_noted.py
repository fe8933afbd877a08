"""Where the broker of a data directory keeps its data: `places.json`, for its next start and for commands that were not
given its settings."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from embermq.app.errors import StartError, UserError
from embermq.app.settings import SQLITE
from embermq.formats.segments import FOLDER

if TYPE_CHECKING:
    from embermq.app.config import Settings

LOG = logging.getLogger("embermq")
FILE_NAME = "places.json"
GIVE = "give the --config or --set of its broker"


class NotedPlaces(Struct, frozen=True, kw_only=True):
    """What `stores.…` said at the last start, without passwords; "" where none has been noted."""

    log: str = ""
    session: str = ""
    static: str = ""
    slot: int | None = None
    """That the node had, of a cluster with several."""

    @property
    def is_on_servers(self) -> bool:
        """Whether the log is in Kafka and sessions are in Redis."""
        return self.log not in ("", SQLITE)


def noted_places(data_dir: Path) -> NotedPlaces:
    """Of a file that cannot be read nothing is known: whoever needs it will say so."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((data_dir / FILE_NAME).read_bytes(), type=NotedPlaces)
    return NotedPlaces()


def note_places(data_dir: Path, settings: Settings, slot: int | None = None) -> None:
    """The broker has started with these settings, those of `slot`. What keeps them from being noted is told, and keeps
    nobody from being served."""
    shown = settings.stores.shown()
    places = NotedPlaces(log=shown.log, session=shown.session, static=shown.static, slot=slot)
    if places == noted_places(data_dir):
        return
    path = data_dir / FILE_NAME
    fresh = path.with_suffix(".new")
    try:
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(places))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        LOG.warning("%s cannot be written: %s", path, error)


def check_profile(data_dir: Path, settings: Settings) -> None:
    """Raises StartError for a data directory that belongs to the other profile: nothing is moved from one to the
    other."""
    noted, shown = noted_places(data_dir), settings.stores.shown()
    if shown.log == SQLITE and noted.is_on_servers:
        raise StartError(
            f"stores.log: the message log of {data_dir} is not in it but in {noted.log}, its sessions are in "
            f"{noted.session}; name both, or take another data directory"
        )
    if shown.log != SQLITE and (data_dir / FOLDER).exists():
        raise StartError(
            f"stores.log: the message log of {data_dir} is in its folder {FOLDER} and is not moved to {shown.log}; "
            "take another data directory"
        )


def static_elsewhere(settings: Settings) -> str:
    """Where the broker has its static data, when these settings do not say so; "" when they do."""
    noted = noted_places(Path(settings.data_dir)).static
    return noted if settings.stores.static == SQLITE and noted != SQLITE else ""


def check_archive(settings: Settings) -> None:
    """Raises UserError when these settings do not lead to where the broker has its archived messages."""
    data_dir = Path(settings.data_dir)
    noted = noted_places(data_dir)
    if noted.log and noted.is_on_servers != (settings.stores.log != SQLITE):
        where = noted.log if noted.is_on_servers else "it"
        raise UserError(f"stores.log: the message log of {data_dir} is in {where}; {GIVE}")
    if elsewhere := static_elsewhere(settings):
        raise UserError(f"stores.static: the messages of {data_dir} are in {elsewhere}; {GIVE}")
