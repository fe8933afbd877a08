"""Settings of HTTP and gRPC; composed by app into the broker's one schema (sections `http` and `grpc`)."""

from typing import Annotated

from msgspec import Meta, Struct

STOP_TIMEOUT_S = 1
"""How long requests and calls under way may take when the broker stops."""
HEADER_BYTES_MAX = 16 * 1024
"""Bytes of an HTTP request before its body."""


class HttpSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the HTTP server; where it listens is `listeners.http`."""

    connections_max: Annotated[int, Meta(ge=1, le=10_000)] = 64
    """Connections at a time; one more takes the place of the one that has waited longest without a request. When all
    have one it is answered with 503."""
    request_timeout_s: Annotated[int, Meta(ge=1, le=600)] = 10
    """How long a request may take to come in, headers and body, and its peer to take a piece of the answer."""
    idle_timeout_s: Annotated[int, Meta(ge=1, le=600)] = 5
    """How long a connection may stay open between two requests."""


class GrpcSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the gRPC server; where it listens is `listeners.grpc`."""

    connections_max: Annotated[int, Meta(ge=1, le=10_000)] = 64
    """Connections at a time; one more takes the place of the one that has waited longest without a call. When all have
    one it is closed."""
    calls_max: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """Calls at a time; one more is answered with RESOURCE_EXHAUSTED."""
    message_bytes_max: Annotated[int, Meta(ge=1_024, le=16 * 1024 * 1024)] = 64 * 1024
    """Bytes of a request; a larger one is answered with RESOURCE_EXHAUSTED."""
    metadata_bytes_max: Annotated[int, Meta(ge=1_024, le=1024 * 1024)] = 16 * 1024
    """Bytes of a call's metadata."""
    request_timeout_s: Annotated[int, Meta(ge=1, le=600)] = 10
    """From the connection's start until it speaks gRPC, and from a call's start until its request is there."""
    call_timeout_s: Annotated[int, Meta(ge=1, le=3_600)] = 60
    """How long a call may take, whatever its deadline says."""
    idle_timeout_s: Annotated[int, Meta(ge=1, le=86_400)] = 300
    """How long a connection may stay open without a call."""
