"""The time that a run leaves for the next one.

It is read from a file, so it stands in no compiled module: there msgspec knows only the simplest types of fields.
"""

from __future__ import annotations

from msgspec import Struct


class NotedTime(Struct, frozen=True):
    """What a run leaves for the next one: its broker time, and how far the wall clock was ahead of it, None when that
    was not set."""

    broker_ms: int
    offset_ms: int | None
