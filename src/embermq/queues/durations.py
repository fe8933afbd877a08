"""Durations as people write them: `500ms`, `5s`, `30m`, `3h`, `7d`."""

import re

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)(ms|s|m|h|d)")
_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,3})?")

DURATION_MAX_MS = 3650 * _UNITS_MS["d"]
"""Ten years: nothing here waits longer."""


class Duration(int):
    """Milliseconds that are written as text in settings."""

    def __str__(self) -> str:
        for unit in ("h", "m", "s"):
            if self and self % _UNITS_MS[unit] == 0:
                return f"{self // _UNITS_MS[unit]}{unit}"
        return f"{int(self)}ms"


def parse_duration(text: str) -> Duration:
    """A duration such as 500ms, 5s, 5m, 3h or 7d. Raises ValueError for any other text."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is no duration such as 500ms, 5s, 5m, 3h or 7d")
    return _checked(float(found[1]) * _UNITS_MS[found[2]], text)


def parse_delay(text: str) -> Duration:
    """A number of seconds, or a duration. Raises ValueError."""
    if _SECONDS.fullmatch(text):
        return _checked(float(text) * 1_000, text)
    return parse_duration(text)


def _checked(value_ms: float, text: str) -> Duration:
    if value_ms > DURATION_MAX_MS:
        raise ValueError(f"{text} is longer than ten years")
    return Duration(round(value_ms))
