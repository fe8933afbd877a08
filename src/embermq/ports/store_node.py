"""Stores that are servers are named by host and port."""

from ipaddress import IPv6Address

from msgspec import Struct


class Node(Struct, frozen=True, order=True):
    """The address of one server of a store."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_nodes(text: str, default_port: int) -> tuple[Node, ...]:
    """Read `host[:port][,host[:port]...]`. Raises ValueError, showing nothing of the text: without an `@` it may be a
    password."""
    nodes = tuple(_node(part, number, default_port) for number, part in enumerate(text.split(","), 1))
    if len(set(nodes)) < len(nodes):
        raise ValueError("names a server twice")
    return nodes


def _node(text: str, number: int, default_port: int) -> Node:
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
        return Node(host, default_port)
    if not (port.isascii() and port.isdigit() and 0 < int(port[:9]) <= 65_535):
        raise ValueError(f"server {number} has a port that is not a number from 1 to 65535")
    return Node(host, int(port))
