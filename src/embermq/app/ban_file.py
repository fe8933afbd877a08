"""Bans: a file in the data directory. Every node has its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from embermq.access.bans import Ban, Bans
from embermq.app.durable_file import replace_durably
from embermq.app.errors import StartError
from embermq.ports.errors import StoreError

FILE_NAME = "bans.json"


class BanFile:
    """Read at the start; the broker alone writes it."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME

    def read(self) -> Bans:
        """Raises StartError for a file that cannot be read: whoever is banned would come in."""
        try:
            return Bans(msgspec.json.decode(self._path.read_bytes(), type=list[Ban]))
        except FileNotFoundError:
            return Bans()
        except (OSError, ValueError) as error:
            raise StartError(f"{self._path} cannot be read: {error}") from error

    def save(self, bans: Sequence[Ban]) -> None:
        """See `BanStore`."""
        try:
            replace_durably(self._path, msgspec.json.format(msgspec.json.encode(bans), indent=1))
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error}") from error
