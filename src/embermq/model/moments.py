"""Moments, Unix milliseconds everywhere else, as texts of ISO 8601 in UTC."""

from datetime import UTC, datetime


def iso_s(unix_ms: int) -> str:
    """To the second: `2026-11-28T15:33:41+00:00`."""
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).isoformat(timespec="seconds")


def iso_ms(unix_ms: int) -> str:
    """To the millisecond: `2026-11-28T15:33:41.250+00:00`."""
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).isoformat(timespec="milliseconds")
