"""Which Redis is meant by a URL, and how it lets us in, without ever showing the password in it."""

from __future__ import annotations

from embermq.ports.store_address import OPTIONS, StoreAddress, address_fields
from embermq.ports.store_url import split_url

SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster")
DEFAULT_PORT = 6379
DATABASE_MAX = 65_535


class RedisAddress(StoreAddress, frozen=True):
    """A Redis, or a few nodes of a cluster."""

    cluster: bool = False
    database: int = 0

    def __str__(self) -> str:
        scheme = ("rediss" if self.tls else "redis") + ("+cluster" if self.cluster else "")
        database = f"/{self.database}" if self.database else ""
        return f"{scheme}://{','.join(map(str, self.nodes))}{database}"


def parse_address(url: str) -> RedisAddress:
    """Read `redis[s][+cluster]://[[user]:password@]host[:port][,host[:port]...][/database][?option=value&...]`; see
    `split_url`."""
    parts = split_url(url, SCHEMES, OPTIONS)
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
    return RedisAddress(cluster=cluster, database=number, **fields)


def with_database(url: str, more: int) -> str:
    """The same URL with a database whose number is higher by `more`. Raises ValueError."""
    number = _database(str(parse_address(url).database + more))
    scheme, _, rest = url.partition("://")
    credentials, at, place = rest.rpartition("@")
    hosts, question, options = place.partition("?")
    return f"{scheme}://{credentials}{at}{hosts.partition('/')[0]}/{number}{question}{options}"


def _database(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= DATABASE_MAX):
        raise ValueError(f"has a database behind the last '/' that is not a number from 0 to {DATABASE_MAX}")
    return int(text)
