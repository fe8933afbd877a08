"""Which Redis is meant by a URL, how it lets us in, and the settings of the link to it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from embermq.ports.store_address import OPTIONS, StoreAddress, address_fields
from embermq.ports.store_url import split_url

WAIT_TIMEOUT_MS = 500
"""How long one WAIT may take, well below any patience with a command; a write that too few replicas have by then is
asked for again, as often as needed."""


class RedisSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Redis is spoken to when `stores.session` names one; see [stores](stores.md)."""

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


SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster")
DEFAULT_PORT = 6379
DATABASE_MAX = 65_535
SLOT = "slot"
"""The option that `with_slot` adds: nobody else writes it."""


class RedisAddress(StoreAddress, frozen=True):
    """A Redis, or a few nodes of a cluster."""

    cluster: bool = False
    database: int = 0
    slot: int = 0
    """Of our cluster, whose keys are meant."""

    def __str__(self) -> str:
        scheme = ("rediss" if self.tls else "redis") + ("+cluster" if self.cluster else "")
        database = f"/{self.database}" if self.database else ""
        slot = f"?{SLOT}={self.slot}" if self.slot else ""
        return f"{scheme}://{','.join(map(str, self.nodes))}{database}{slot}"

    @property
    def prefix(self) -> str:
        """How all keys begin that are ours."""
        from embermq.formats.redis_layout import key_prefix  # reading a URL takes no layout

        return key_prefix(self.slot)


def parse_address(url: str) -> RedisAddress:
    """Read `redis[s][+cluster]://[[user]:password@]host[:port][,host[:port]...][/database][?option=value&...]`; see
    `split_url`."""
    parts = split_url(url, SCHEMES, (*OPTIONS, SLOT))
    hosts, slash, database = parts.place.partition("/")
    cluster = parts.scheme.endswith("+cluster")
    fields = address_fields(parts, hosts, DEFAULT_PORT, tls_schemes=("rediss", "rediss+cluster"))
    if len(fields["nodes"]) > 1 and not cluster:
        raise ValueError(
            f"names {len(fields['nodes'])} servers; that is for a cluster, {parts.scheme}+cluster://"
        )
    number = _database(database) if slash and database else 0
    if number and cluster:
        raise ValueError(f"names the database {number}; a cluster only has 0")
    if parts.username and not parts.password and "password_file" not in parts.options:
        raise ValueError("has a user without a password; write user:password@, or :password@")
    return RedisAddress(cluster=cluster, database=number, slot=_slot(parts.options.get(SLOT, "0")), **fields)


def with_slot(url: str, slot: int) -> str:
    """The same URL for the keys of a slot of our cluster."""
    return f"{url}{'&' if '?' in url.rpartition('@')[2] else '?'}{SLOT}={slot}"


def _slot(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4):
        raise ValueError(f"has an option {SLOT} that is no slot of a cluster")
    return int(text)


def _database(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= DATABASE_MAX):
        raise ValueError(f"has a database behind the last '/' that is not a number from 0 to {DATABASE_MAX}")
    return int(text)
