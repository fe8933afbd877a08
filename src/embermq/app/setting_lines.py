"""Where in a TOML file a setting stands: what reads TOML does not tell."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HEADER = re.compile(r"\s*\[\s*([^\[\]]+(?:\[[^\]]*\][^\[\]]*)*)\s*\]\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"\n]*"|'[^'\n]*')(?:\s*\.\s*(?:[\w-]+|"[^"\n]*"|'[^'\n]*'))*)\s*=""")
_PART = re.compile(r"""[\w-]+|"[^"\n]*"|'[^'\n]*'""")
_LONG = ('"""', "'''")

Path = tuple[str, ...]


class SettingLines:
    """The lines of settings in a file that is valid TOML; lines count from 1."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        for number, path in _found(text):
            self._lines.setdefault(path, number)

    def line(self, *path: str) -> int:
        """Of a key, or of the table that it is written in; 0 when neither is known."""
        for length in range(len(path), 0, -1):
            if found := self._lines.get(path[:length]):
                return found
        return 0


def _found(text: str) -> Iterator[tuple[int, Path]]:
    table: Path = ()
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        rest = line
        if inside:
            if inside not in line:
                continue
            rest, inside = line.partition(inside)[2], ""
        elif header := _HEADER.match(line):
            table = _parts(header[1])
            yield number, table
        elif key := _KEY.match(line):
            yield number, table + _parts(key[1])
        inside = _left_open(rest)


def _parts(key: str) -> Path:
    return tuple(part[1:-1] if part[0] in "\"'" else part for part in _PART.findall(key))


def _left_open(rest: str) -> str:
    """The quotes of a text that goes on in the next line."""
    while True:
        opened = min((mark for mark in _LONG if mark in rest), key=rest.index, default="")
        if not opened:
            return ""
        _, _, rest = rest.partition(opened)
        if opened not in rest:
            return opened
        rest = rest.partition(opened)[2]
