"""Settings of DEVICE delivery; composed by app into the broker's one schema (section `device`)."""

from typing import Annotated

from msgspec import Meta, Struct


class DeviceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The offline queue of each DEVICE session."""

    queue_limit: Annotated[int, Meta(ge=1, le=65_535)] = 10_000
    """Messages stored for one session, those in flight included; past it the oldest that are not in flight go first.
    With sessions in Redis 65,535 packet ids less `mqtt.inflight_max`, which may be in flight, are stored at most."""
    queue_bytes_max: Annotated[int, Meta(ge=1024, le=1_099_511_627_776)] = 100 * 1024 * 1024
    """The same in bytes of messages with their topics and properties."""
    ttl_s: Annotated[int, Meta(ge=1, le=4_294_967_295)] = 604_800
    """How long a stored message is kept when its publisher set no expiry."""
    linger_ms: Annotated[float, Meta(ge=0, le=10_000)] = 50.0
    """A QoS 1 message that an online client acknowledges within this time is never written to the queue. A client that
    takes longer is given what it was measured to take, up to 1 s ([why](decisions/0006-write-elision.md))."""
