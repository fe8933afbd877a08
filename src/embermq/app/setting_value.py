"""Reading one setting's value against its type, and saying in plain words why it is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from difflib import get_close_matches

import msgspec
from msgspec import inspect

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


def convert_setting(value: object, annotation: object, *, is_text: bool) -> tuple[object, str]:
    """Return the value in its type and "", or None and why it is impossible.

    Text (environment, `--set`) is read by the type: numbers, true/false, and lists as `a, b` or as JSON.
    """
    described = inspect.type_info(annotation)
    if is_text and isinstance(value, str):
        value = _read_text(value, described)
    if isinstance(value, float) and not math.isfinite(value):
        return None, f"{value} is not a number that can be used"
    try:
        return msgspec.convert(value, annotation, strict=not is_text), ""
    except msgspec.ValidationError as error:
        return None, _explain(value, described, str(error), is_text=is_text)


def _read_text(text: str, described: inspect.Type) -> object:
    if not _takes_list(described):
        return text.strip() if not isinstance(described, inspect.StrType) else text
    stripped = text.strip()
    if stripped.startswith('["') or stripped == "[]":
        try:
            return json.loads(stripped)
        except ValueError:
            return text
    parts = [part.strip() for part in stripped.split(",") if part.strip()]
    return parts[0] if isinstance(described, inspect.UnionType) and len(parts) == 1 else parts


def _takes_list(described: inspect.Type) -> bool:
    if isinstance(described, inspect.UnionType):
        return any(_takes_list(member) for member in described.types)
    return isinstance(described, inspect.ListType | inspect.VarTupleType)


def _explain(value: object, described: inspect.Type, fallback: str, *, is_text: bool = False) -> str:
    if isinstance(described, inspect.IntType | inspect.FloatType):
        number = _number(value, described) if is_text or not isinstance(value, str) else None
        if number is None:
            kind = "a whole number" if isinstance(described, inspect.IntType) else "a number"
            return f"{value!r} is not {kind}"
        return _out_of_range(number, described) or fallback
    if isinstance(described, inspect.BoolType):
        return f"{value!r} is not true or false"
    if isinstance(described, inspect.LiteralType):
        allowed = [str(choice) for choice in described.values]
        near = get_close_matches(str(value), allowed, n=1)
        return f"{value!r} is not one of {', '.join(allowed)}" + (
            f"; the nearest is {near[0]}" if near else ""
        )
    if isinstance(described, inspect.StrType):
        if isinstance(value, str) and described.max_length is not None:
            return f"has {len(value)} characters, more than the largest allowed {described.max_length}"
        return f"{value!r} is not a text"
    if value == [] and _takes_list(described):
        return "is an empty list"
    if isinstance(described, inspect.ListType | inspect.VarTupleType) and isinstance(value, list):
        for item in value:
            _, problem = _convert_item(item, described.item_type)
            if problem:
                return problem
    if _takes_list(described):
        return f"{value!r} is not a list of texts"
    return f"{value!r}: {fallback}"


def _convert_item(item: object, described: inspect.Type) -> tuple[object, str]:
    if isinstance(described, inspect.LiteralType):
        return (item, "") if item in described.values else (None, _explain(item, described, ""))
    if isinstance(described, inspect.StrType):
        return (item, "") if isinstance(item, str) else (None, _explain(item, described, ""))
    return item, ""


def _number(value: object, described: inspect.IntType | inspect.FloatType) -> int | float | None:
    if isinstance(value, bool):
        return None
    kind = int if isinstance(described, inspect.IntType) else float
    if isinstance(value, str):
        try:
            number = kind(value)
        except ValueError:
            return None
        return number if math.isfinite(number) else None
    if isinstance(value, int) or (isinstance(value, float) and kind is float):
        return value
    return None


def _out_of_range(number: int | float, described: inspect.IntType | inspect.FloatType) -> str:
    if described.le is not None and number > described.le:
        return f"{number} is more than the largest allowed {described.le}"
    if described.ge is not None and number < described.ge:
        return f"{number} is less than the smallest allowed {described.ge}"
    if described.gt is not None and number <= described.gt:
        return f"{number} is not more than {described.gt}"
    if described.lt is not None and number >= described.lt:
        return f"{number} is not less than {described.lt}"
    return ""
