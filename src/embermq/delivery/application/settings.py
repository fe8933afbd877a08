"""Settings of APPLICATION delivery; composed by app into the broker's one schema (section `application`)."""

from typing import Annotated

from msgspec import Meta, Struct


class ApplicationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an application log is read for its client."""

    max_poll_records: Annotated[int, Meta(ge=1, le=65_535)] = 200
    """Messages of a pack: read at a time."""
    poll_interval_ms: Annotated[int, Meta(ge=1, le=60_000)] = 20
    """How often the log is looked at when it had nothing new."""
