"""Which Redis is meant by a URL, without ever showing the password in it."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from msgspec import Struct

from embermq.ports.store_node import Node, parse_nodes

SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster")
DEFAULT_PORT = 6379
DATABASE_MAX = 65_535


class RedisAddress(Struct, frozen=True):
    """A Redis, or a few nodes of a cluster by which all are found. Its text and repr have no user and no password."""

    nodes: Sequence[Node]
    tls: bool = False
    cluster: bool = False
    database: int = 0
    username: str = ""
    password: str = ""

    def __str__(self) -> str:
        scheme = ("rediss" if self.tls else "redis") + ("+cluster" if self.cluster else "")
        database = f"/{self.database}" if self.database else ""
        return f"{scheme}://{','.join(map(str, self.nodes))}{database}"

    def __repr__(self) -> str:
        return f"RedisAddress({self})"


def parse_address(url: str) -> RedisAddress:
    """Read `redis[s][+cluster]://[[user]:password@]host[:port][,host[:port]...][/database]`.

    User and password are percent-encoded where they have one of `:/?#@%`. Raises ValueError with what is wrong, never
    with what stands before the `@`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        shown = scheme if separator and scheme.replace("+", "").isalnum() else "no known scheme"
        raise ValueError(f"begins with {shown}, not with one of {', '.join(s + '://' for s in SCHEMES)}")
    credentials, _, place = rest.rpartition("@")
    for mark in "?#":
        if mark in place or mark in credentials:
            raise ValueError(
                f"has a {mark!r}; options have settings of their own, in passwords write %{ord(mark):X}"
            )
    if "/" in credentials:
        raise ValueError("has a '/' before the '@'; in passwords write %2F")
    hosts, slash, database = place.partition("/")
    cluster = scheme.endswith("+cluster")
    nodes = parse_nodes(hosts, DEFAULT_PORT)
    if len(nodes) > 1 and not cluster:
        raise ValueError(f"names {len(nodes)} servers; that is for a cluster, {scheme}+cluster://")
    number = _database(database) if slash and database else 0
    if number and cluster:
        raise ValueError(f"names the database {number}; a cluster only has 0")
    username, _, password = credentials.partition(":")
    if username and not password:
        raise ValueError("has a user without a password; write user:password@, or :password@")
    return RedisAddress(
        nodes=nodes,
        tls=scheme.startswith("rediss"),
        cluster=cluster,
        database=number,
        username=unquote(username),
        password=unquote(password),
    )


def _database(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= DATABASE_MAX):
        raise ValueError(f"has a database behind the last '/' that is not a number from 0 to {DATABASE_MAX}")
    return int(text)
