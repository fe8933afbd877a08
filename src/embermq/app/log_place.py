"""Places in the message log as people type them."""

from datetime import UTC, datetime

from embermq.app.errors import OptionError

EARLIEST = "earliest"


def place_in_log(option: str, text: str) -> tuple[int | None, int | None]:
    """An offset, or a time in Unix milliseconds. Raises OptionError."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text), None
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
