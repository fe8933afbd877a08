"""Settings of the link to Redis; composed by app into the broker's one schema (section `redis`)."""

from typing import Annotated

from msgspec import Meta, Struct

WAIT_TIMEOUT_MS = 500
"""How long one WAIT may take, well below any patience with a command; a write that too few replicas have by then is
asked for again, as often as needed."""


class RedisSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Redis is spoken to when `stores.session` names one; see [stores](stores.md)."""

    batch_commands: Annotated[int, Meta(ge=1, le=10_000)] = 250
    """So many commands are sent at once, as soon as they are there."""
    batch_ms: Annotated[float, Meta(ge=0, le=1_000)] = 1.0
    """How long a command may wait for company after the last batch. The first one after a pause never waits."""
    command_timeout_s: Annotated[float, Meta(gt=0, le=600)] = 5.0
    """A connection on which nothing is answered for that long is closed, and all that waits is sent again."""
    wait_replicas: Annotated[int, Meta(ge=0, le=16)] = 0
    """So many replicas must have a write before it counts as stored (WAIT); 0 does not ask them."""
    settle_s: Annotated[float, Meta(ge=0, le=60)] = 3.0
    """What Redis has confirmed is kept until it has answered so much later, and sent again when a server turns out to
    have been restarted or replaced: it may have lost it, with `appendfsync everysec` a little more than 2 s. The
    broker's position in its log stays as far behind. At most 64 MiB are kept so. 0 is off: for `appendfsync always`
    without failover."""


def check_settings(settings: RedisSettings) -> None:
    """Raise ValueError, naming the setting, for limits that contradict one another."""
    if settings.wait_replicas and settings.command_timeout_s * 1000 <= WAIT_TIMEOUT_MS:
        raise ValueError(
            f"redis.command_timeout_s: {settings.command_timeout_s:g} is not more than {WAIT_TIMEOUT_MS} ms, which one "
            "WAIT for redis.wait_replicas may take: each would look like a dead connection"
        )
