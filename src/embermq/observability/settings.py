"""Settings of what the broker writes about itself; composed by app into the one schema (section `logging`)."""

from typing import Literal

from msgspec import Struct


class LoggingSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lines for people or JSON for machines, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important lines that are written."""
    format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object a line."""
