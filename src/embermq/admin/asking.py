"""From what a caller has said to the request of an operation, and why it cannot be one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from embermq.admin.errors import RequestRefused
from embermq.admin.operation import AdminOperation

SHOWN_MAX = 40
_MSGSPEC = re.compile(r"(?P<told>.*?)(?: - at `\$\.?(?P<field>.*)`)?", re.DOTALL)
_OWN_WORDS = ("Expected", "Integer", "Invalid", "Number", "Object", "Timestamp")


def request_of(operation: AdminOperation, said: Mapping[str, Any], *, as_text: bool) -> Any:
    """`as_text`: numbers and times in it are texts. Raises RequestRefused, naming the field."""
    try:
        return msgspec.convert(said, operation.request, strict=not as_text)
    except msgspec.ValidationError as error:
        raise RequestRefused(_told(str(error), said)) from None


def _told(text: str, said: Mapping[str, Any]) -> str:
    found = _MSGSPEC.fullmatch(text)
    assert found is not None
    told, place = found["told"].rstrip(), found["field"] or ""
    if not told.startswith(_OWN_WORDS):
        return told  # our own, which names its field
    value: Any = said
    for part in re.findall(r"[^.\[\]]+", place):
        value = value[int(part)] if part.isdecimal() else value.get(part)
    shown = repr(value) if len(repr(value)) <= SHOWN_MAX else f"{repr(value)[:SHOWN_MAX]}…"
    name = place.removeprefix("filter.")
    if value == "":
        return f"{name}: is empty"
    return f"{name}: is {shown}, {told[0].lower()}{told[1:]}" if name else told
