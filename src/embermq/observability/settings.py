"""Settings of what the broker writes about itself; composed by app into the one schema (section `logging`)."""

from typing import Annotated, Literal

from msgspec import Meta, Struct


class LoggingSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lines for people or JSON for machines, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important lines that are written."""
    format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object a line."""
    client_events_rate_max: Annotated[int, Meta(ge=0, le=100_000)] = 100
    """Lines a second for each kind of client event (connected, disconnected, login failed, denied, refused),
    a tenth of them for one client or address. Omitted lines are counted in a line of their own. 0: none."""
