"""Which Kafka is meant by a URL, without ever showing the password in it."""

from __future__ import annotations

from urllib.parse import unquote

from msgspec import Struct

from embermq.ports.store_node import Node, parse_nodes

SCHEMES = ("kafka", "kafka+ssl")
DEFAULT_PORT = 9092


class KafkaAddress(Struct, frozen=True):
    """A few servers of a cluster by which all are found. Its text and repr have no user and no password."""

    nodes: tuple[Node, ...]
    tls: bool = False
    username: str = ""
    password: str = ""

    def __str__(self) -> str:
        return f"{'kafka+ssl' if self.tls else 'kafka'}://{self.bootstrap}"

    def __repr__(self) -> str:
        return f"KafkaAddress({self})"

    @property
    def bootstrap(self) -> str:
        """As Kafka's own programs take it."""
        return ",".join(map(str, self.nodes))


def parse_address(url: str) -> KafkaAddress:
    """Read `kafka[+ssl]://[user:password@]host[:port][,host[:port]...]`.

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
    hosts, _, path = place.partition("/")
    if path:
        raise ValueError("has something behind a '/'; what topics begin with is set by kafka.prefix")
    username, colon, password = credentials.partition(":")
    if colon and not username:
        raise ValueError("has a password without a user; write user:password@")
    return KafkaAddress(
        nodes=parse_nodes(hosts, DEFAULT_PORT),
        tls=scheme == "kafka+ssl",
        username=unquote(username),
        password=unquote(password),
    )
