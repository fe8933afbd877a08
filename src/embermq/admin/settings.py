"""Settings of the HTTP surface; composed by app into the broker's one schema (section `http`)."""

from typing import Annotated

from msgspec import Meta, Struct


class HttpSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the HTTP server; where it listens is `listeners.http`."""

    connections_max: Annotated[int, Meta(ge=1, le=10_000)] = 64
    """Connections at a time; one more takes the place of the one that has waited longest without a request. When all
    have one it is answered with 503."""
    request_timeout_s: Annotated[int, Meta(ge=1, le=600)] = 10
    """How long a request may take to come in, headers and body, and its peer to take a piece of the answer."""
    idle_timeout_s: Annotated[int, Meta(ge=1, le=600)] = 5
    """How long a connection may stay open between two requests."""
    stop_timeout_s: Annotated[int, Meta(ge=1, le=60)] = 1
    """How long requests under way may take when the broker stops."""
    header_bytes_max: Annotated[int, Meta(ge=1_024, le=1024 * 1024)] = 16 * 1024
    """Bytes of a request before its body."""
