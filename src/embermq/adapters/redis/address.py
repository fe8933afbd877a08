"""Which Redis is meant by a URL, without ever showing the password in it."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv6Address
from urllib.parse import unquote

from msgspec import Struct

SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster")
DEFAULT_PORT = 6379
DATABASE_MAX = 65_535


class Node(Struct, frozen=True, order=True):
    """One server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


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
    nodes = tuple(_node(text, number) for number, text in enumerate(hosts.split(","), 1))
    if len(nodes) > 1 and not cluster:
        raise ValueError(f"names {len(nodes)} servers; that is for a cluster, {scheme}+cluster://")
    if len(set(nodes)) < len(nodes):
        raise ValueError("names a server twice")
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


def _node(text: str, number: int) -> Node:
    """Errors show nothing of the text: without an `@` it may be a password."""
    if text.startswith("["):
        host, _, after = text[1:].partition("]")
        colon, port = after[:1], after[1:]
        try:
            IPv6Address(host)
        except ValueError:
            raise ValueError(f"server {number} is no IPv6 address in brackets") from None
        if colon not in ("", ":"):
            raise ValueError(f"server {number} has something else than :port behind the brackets")
    elif text.count(":") > 1:
        raise ValueError(f"server {number} has several ':'; an IPv6 address is written in brackets, [::1]")
    else:
        host, colon, port = text.partition(":")
    if not host or any(character.isspace() or not character.isprintable() for character in host):
        raise ValueError(f"server {number} is no host:port")
    if not colon:
        return Node(host, DEFAULT_PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port[:9]) <= 65_535):
        raise ValueError(f"server {number} has a port that is not a number from 1 to 65535")
    return Node(host, int(port))


def _database(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= DATABASE_MAX):
        raise ValueError(f"has a database behind the last '/' that is not a number from 0 to {DATABASE_MAX}")
    return int(text)
