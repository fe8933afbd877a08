"""What Redis answers, and what is to be done about its errors."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import hiredis
from msgspec import Struct


class Refused(Struct, frozen=True):
    """Redis will never do this one operation, whatever is tried: the text is Redis's own. It is logged and counted."""

    text: str


Answer: TypeAlias = "bytes | int | list[Answer] | Refused | None"
"""As RESP2 has it: texts are bytes, a missing value is None."""

ErrorReply = hiredis.ReplyError


class Sort(Enum):
    """What an error means for the operation that met it."""

    MOVED = "its keys are at another node"
    ASK = "its keys are on the way to another node"
    SCRIPT = "the node does not know the script"
    LATER = "it may succeed later, by itself"
    TELL = "it may succeed later, but somebody must do something"
    AWAY = "this node cannot serve now: its connection starts again"
    BROKEN = "this operation alone is broken"


_SORTS = {
    "MOVED": Sort.MOVED,
    "ASK": Sort.ASK,
    "NOSCRIPT": Sort.SCRIPT,
    "TRYAGAIN": Sort.LATER,
    "CLUSTERDOWN": Sort.LATER,
    "BUSY": Sort.LATER,
    "LOADING": Sort.AWAY,
    "MASTERDOWN": Sort.AWAY,
    "READONLY": Sort.AWAY,
    "NOAUTH": Sort.AWAY,
    "UNBLOCKED": Sort.LATER,
    "OOM": Sort.TELL,
    "MISCONF": Sort.TELL,
    "NOREPLICAS": Sort.TELL,
    "NOPERM": Sort.TELL,
}


_ON_ITS_WAY = "ERR Script attempted to access a non local key"
"""What ends a script in the middle when its slot is moving, and a key that it meets is not there (any more)."""


def sort_error(text: str) -> Sort:
    """By the first word, which is also the one of what a script met in it."""
    sort = _SORTS.get(text.partition(" ")[0], Sort.BROKEN)
    return Sort.LATER if sort is Sort.BROKEN and text.startswith(_ON_ITS_WAY) else sort
