"""Which Redis is meant by a URL, and how it lets us in, without ever showing the password in it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from embermq.ports.store_node import Node, parse_nodes
from embermq.ports.store_url import split_url

SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster")
DEFAULT_PORT = 6379
DATABASE_MAX = 65_535
TLS_OPTIONS = ("ca_file", "cert_file")


class RedisAddress(Struct, frozen=True):
    """A Redis, or a few nodes of a cluster by which all are found. Its text and repr have no user and no password."""

    nodes: Sequence[Node]
    tls: bool = False
    cluster: bool = False
    database: int = 0
    username: str = ""
    password: str = ""
    password_file: str = ""
    """In place of the password, for who reads files."""
    ca_file: str = ""
    """Certificates (PEM) that those of the servers are checked with; "" for the system's."""
    cert_file: str = ""
    """Certificate and key (PEM) that are shown to the servers."""

    def __str__(self) -> str:
        scheme = ("rediss" if self.tls else "redis") + ("+cluster" if self.cluster else "")
        database = f"/{self.database}" if self.database else ""
        return f"{scheme}://{','.join(map(str, self.nodes))}{database}"

    def __repr__(self) -> str:
        return f"RedisAddress({self})"


def parse_address(url: str) -> RedisAddress:
    """Read `redis[s][+cluster]://[[user]:password@]host[:port][,host[:port]...][/database][?option=value&...]`; see
    `split_url`."""
    parts = split_url(url, SCHEMES, (*TLS_OPTIONS, "password_file"))
    scheme, options = parts.scheme, parts.options
    hosts, slash, database = parts.place.partition("/")
    cluster, tls = scheme.endswith("+cluster"), scheme.startswith("rediss")
    nodes = parse_nodes(hosts, DEFAULT_PORT)
    if len(nodes) > 1 and not cluster:
        raise ValueError(f"names {len(nodes)} servers; that is for a cluster, {scheme}+cluster://")
    number = _database(database) if slash and database else 0
    if number and cluster:
        raise ValueError(f"names the database {number}; a cluster only has 0")
    if parts.username and not parts.password and "password_file" not in options:
        raise ValueError("has a user without a password; write user:password@, or :password@")
    for name in TLS_OPTIONS:
        if name in options and not tls:
            raise ValueError(f"has the option {name}, which is for rediss:// and rediss+cluster://")
    return RedisAddress(
        nodes=nodes,
        tls=tls,
        cluster=cluster,
        database=number,
        username=parts.username,
        password=parts.password or "",
        password_file=options.get("password_file", ""),
        ca_file=options.get("ca_file", ""),
        cert_file=options.get("cert_file", ""),
    )


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
