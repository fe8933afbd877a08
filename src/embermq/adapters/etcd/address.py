"""Which etcd is meant by a URL, and how it lets us in, without ever showing the password in it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from embermq.ports.store_node import Node, parse_nodes
from embermq.ports.store_url import split_url

SCHEMES = ("etcd", "etcd+ssl")
DEFAULT_PORT = 2379
DEFAULT_NAME = "embermq"
TLS_OPTIONS = ("ca_file", "cert_file")
NAME = re.compile(r"[a-zA-Z0-9._-]{1,160}")


class EtcdAddress(Struct, frozen=True):
    """A few members of an etcd, and the cluster of ours that is meant. Its text and repr have no user and no
    password."""

    nodes: Sequence[Node]
    name: str = DEFAULT_NAME
    tls: bool = False
    username: str = ""
    password: str = ""
    password_file: str = ""
    """In place of the password, for who reads files."""
    ca_file: str = ""
    """Certificates (PEM) that those of the servers are checked with; "" for the system's."""
    cert_file: str = ""
    """Certificate and key (PEM) that are shown to the servers."""

    def __str__(self) -> str:
        return f"{'etcd+ssl' if self.tls else 'etcd'}://{','.join(map(str, self.nodes))}/{self.name}"

    def __repr__(self) -> str:
        return f"EtcdAddress({self})"


def parse_address(url: str) -> EtcdAddress:
    """Read `etcd[+ssl]://[user:password@]host[:port][,host[:port]...][/name][?option=value&...]`; see `split_url`."""
    parts = split_url(url, SCHEMES, (*TLS_OPTIONS, "password_file"))
    options, tls = parts.options, parts.scheme == "etcd+ssl"
    hosts, _, name = parts.place.partition("/")
    if name and not NAME.fullmatch(name):
        raise ValueError(f"has a name behind the '/' that does not fit {NAME.pattern}")
    has_password = parts.password is not None or "password_file" in options
    if bool(parts.username) != has_password:
        raise ValueError("has a user without a password, or a password without a user; write user:password@")
    for option in TLS_OPTIONS:
        if option in options and not tls:
            raise ValueError(f"has the option {option}, which is for etcd+ssl://")
    return EtcdAddress(
        nodes=parse_nodes(hosts, DEFAULT_PORT),
        name=name or DEFAULT_NAME,
        tls=tls,
        username=parts.username,
        password=parts.password or "",
        password_file=options.get("password_file", ""),
        ca_file=options.get("ca_file", ""),
        cert_file=options.get("cert_file", ""),
    )
