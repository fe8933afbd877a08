"""Bounds of the HTTP and gRPC servers.

Their defaults are what every broker runs with, wide for the few operators and programs that call, narrow for a flood;
no setting changes them. Tests pass narrower ones.
"""

from msgspec import Struct

MISSING_SLOTS = "embermq-missing-slots"
"""The header of HTTP that names the slots of a cluster whose part of a list is not in the answer."""
STOP_TIMEOUT_S = 1
"""How long requests and calls under way may take when the broker stops."""
HEADER_BYTES_MAX = 16 * 1024
"""Bytes of an HTTP request before its body."""


class HttpLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the HTTP server; where it listens is `listeners.http`."""

    connections_max: int = 64
    """Connections at a time; one more takes the place of the one that has waited longest without a request. When all
    have one it is answered with 503."""
    request_timeout_s: int = 10
    """How long a request may take to come in, headers and body, and its peer to take a piece of the answer."""
    idle_timeout_s: int = 5
    """How long a connection may stay open between two requests."""


class GrpcLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the gRPC server; where it listens is `listeners.grpc`."""

    connections_max: int = 64
    """Connections at a time; one more takes the place of the one that has waited longest without a call. When all have
    one it is closed."""
    calls_max: int = 100
    """Calls at a time; one more is answered with RESOURCE_EXHAUSTED."""
    message_bytes_max: int = 64 * 1024
    """Bytes of a request; a larger one is answered with RESOURCE_EXHAUSTED."""
    metadata_bytes_max: int = 16 * 1024
    """Bytes of a call's metadata."""
    request_timeout_s: int = 10
    """From the connection's start until it speaks gRPC, and from a call's start until its request is there."""
    call_timeout_s: int = 60
    """How long a call may take, whatever its deadline says."""
    idle_timeout_s: int = 300
    """How long a connection may stay open without a call."""
