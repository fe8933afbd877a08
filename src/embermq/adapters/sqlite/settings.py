"""Settings of the embedded message log; composed by app into the broker's one schema (section `log`)."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Durability = Literal["fsync", "os", "memory"]
PinPolicy = Literal["refuse", "drop-oldest"]

PIN_LIMIT_SHARE = 0.8
"""Of the disk budget: what readers may hold back. The rest is for records of the time in which it is noticed."""


class LogSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How safe an acknowledgement is, and how long and how much is kept."""

    durability: Durability = "fsync"
    """What an acknowledgement means: on disk; with the operating system (survives a crash of the broker, not of the
    machine); in memory."""
    retention_hours: Annotated[float, Meta(gt=0, le=87_600)] = 24.0
    """How long the message log keeps a record; longer while somebody still has to read it."""
    retention_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 1024 * 1024 * 1024
    """How many bytes of records the message log keeps, with the same exception."""
    disk_budget_bytes: Annotated[int, Meta(ge=16 * 1024 * 1024)] = 10 * 1024 * 1024 * 1024
    """What the log may take at most, with what readers still need: these may hold back four fifths of it from
    retention, the pin limit."""
    pin_policy: PinPolicy = "refuse"
    """Past the pin limit: refuse new publishes that match the reader, or drop its oldest (counted and shown)."""


def check_settings(settings: LogSettings) -> None:
    """Raise ValueError, naming the setting, for limits that contradict one another."""
    if settings.retention_bytes > settings.disk_budget_bytes:
        raise ValueError(
            f"log.retention_bytes: {settings.retention_bytes} is more than log.disk_budget_bytes, "
            f"{settings.disk_budget_bytes}"
        )
