"""Places in the message log as people type them."""

import re
from datetime import UTC, datetime

from embermq.app.errors import OptionError
from embermq.model.position import OFFSET_END, PARTITION_END, offset_of, partition_of, position_of

EARLIEST = "earliest"
_POSITION = re.compile(r"(?:([0-9]{1,6}):)?([0-9]{1,14})")


def place_in_log(option: str, text: str) -> tuple[int | None, int | None]:
    """A position, as 1200 or 0:1200, or a time in Unix milliseconds. Raises OptionError."""
    if found := _POSITION.fullmatch(text):
        partition, offset = int(found[1] or 0), int(found[2])
        if partition < PARTITION_END and offset < OFFSET_END:
            return position_of(partition, offset), None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        earliest = f", nor {EARLIEST}" if option == "--from" else ""
        raise OptionError(
            f"{option}: {text!r} is neither an offset of the log nor a time as 2026-01-31T12:00{earliest}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return None, round(moment.timestamp() * 1_000)


def told_position(position: int) -> str:
    """As people read it, and type it."""
    return f"{partition_of(position)}:{offset_of(position)}"
