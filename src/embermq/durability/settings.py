"""Settings of state in a store of its own; composed by app into the broker's one schema (section `session_store`)."""

from typing import Annotated

from msgspec import Meta, Struct


class SessionStoreSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens while the store of session data, or a log in Kafka, is away."""

    waiting_bytes_max: Annotated[int, Meta(ge=1024 * 1024, le=64 * 1024**3)] = 64 * 1024 * 1024
    """What may wait in memory to be written there. Past it, until three quarters of it are left, messages for kept
    sessions stay in the log and are stored from there later; new sessions to be kept, and messages for durable queues,
    are refused. Of no meaning while sessions are kept beside the log."""
    connect_wait_s: Annotated[float, Meta(ge=0.01, le=600)] = 5.0
    """How long a CONNECT with a session to be kept, or with a will, waits for it, and that of an APPLICATION client for
    its log in Kafka; then it is refused with 0x88, in 3.x with return code 3."""
