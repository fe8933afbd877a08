"""Bans of a broker without a cluster: a file in the data directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from embermq.access.bans import Ban, Bans
from embermq.app.durable_file import replace_durably
from embermq.app.errors import StartError
from embermq.app.log_side import Post
from embermq.ports.errors import StoreError

FILE_NAME = "bans.json"
ToldBans = Callable[[Bans], None]
"""Called on the event loop with those that there are now."""


class BanFile:
    """Read at the start; the broker alone writes it. See `BanStore`."""

    def __init__(self, data_dir: Path, post: Post) -> None:
        self._path = data_dir / FILE_NAME
        self._post = post
        self._bans = Bans()
        self._told: ToldBans | None = None

    def begin(self, told: ToldBans) -> None:
        """Raises StartError for a file that cannot be read: whoever is banned would come in."""
        self._told, self._bans = told, Bans(bans_in(self._path))
        told(self._bans)

    def put(self, ban: Ban) -> None:
        """See `BanStore`."""
        others = [
            one for one in self._bans.all(ban.since_ms) if (one.kind, one.value) != (ban.kind, ban.value)
        ]
        self._save([*others, ban])

    def lift(self, ban: Ban) -> None:
        """See `BanStore`."""
        self._save([one for one in self._bans.all(0) if one != ban])

    def _save(self, bans: Sequence[Ban]) -> None:
        assert self._told is not None
        found = Bans(bans)
        try:
            replace_durably(self._path, msgspec.json.format(msgspec.json.encode(found.all(0)), indent=1))
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error}") from error
        self._bans = found
        self._post(partial(self._told, found))


def bans_in(path: Path) -> list[Ban]:
    """None when there is no file. Raises StartError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Ban])
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise StartError(f"{path} cannot be read: {error}") from error
