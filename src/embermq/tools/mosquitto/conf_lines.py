"""Reads `mosquitto.conf` and what it includes into lines, each with the listener that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from embermq.app.errors import UserError

CONF_BYTES_MAX = 4 * 1024 * 1024
FILES_MAX = 1_000
DEFAULT_LISTENER = 0
"""The owner of lines that stand before the first `listener` of their file."""


class ConfLine(Struct, frozen=True):
    """One setting; `owner` is the number of its listener, `place` the file and line as people name them."""

    place: str
    name: str
    value: str
    owner: int


def read_conf(path: Path) -> list[ConfLine]:
    """All lines in the order in which Mosquitto takes them. Raises UserError with the file, and its line, that cannot
    be read."""
    return list(_Reader().lines(path, is_main=True))


class _Reader:
    def __init__(self) -> None:
        self._listeners = 0
        self._files = 0

    def lines(self, path: Path, *, is_main: bool) -> Iterator[ConfLine]:
        owner = DEFAULT_LISTENER
        for number, text in enumerate(_text(path).split("\n"), 1):
            name, _, rest = text.strip().partition(" ")
            if not name or name.startswith("#"):
                continue
            value = rest.strip()
            if name == "listener":
                self._listeners += 1
                owner = self._listeners
            yield ConfLine(f"{path}:{number}", name, value, owner)
            if name == "include_dir" and is_main:
                # Only the main file includes others, and in each the lines before a `listener` are the default one's.
                for included in self._included(Path(value), f"{path}:{number}"):
                    yield from self.lines(included, is_main=False)

    def _included(self, folder: Path, place: str) -> list[Path]:
        try:
            found = sorted(
                (entry for entry in folder.iterdir() if entry.name.endswith(".conf")),
                # The upper case of each letter before its lower case, as Mosquitto sorts them.
                key=lambda entry: ([(letter.lower(), letter) for letter in entry.name]),
            )
        except OSError as error:
            raise UserError(f"{place}: cannot read the folder {folder}: {error.strerror or error}") from None
        self._files += len(found)
        if self._files > FILES_MAX:
            raise UserError(f"{place}: {folder} has {self._files} files, more than the largest {FILES_MAX}")
        return found


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(CONF_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > CONF_BYTES_MAX:
        raise UserError(f"{path} has more than the largest possible {CONF_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: is not UTF-8") from None
