"""Which Kafka is meant by a URL, and how it lets us in, without ever showing the password in it."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from embermq.ports.store_node import Node, parse_nodes
from embermq.ports.store_url import split_url

SCHEMES = ("kafka", "kafka+ssl")
DEFAULT_PORT = 9092
TLS_OPTIONS = ("ca_file", "cert_file")
LOGIN_OPTIONS = ("password_file", "sasl_mechanism")
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


class KafkaAddress(Struct, frozen=True, forbid_unknown_fields=True):
    """A few servers of a cluster by which all are found, and what they ask for. Its text and repr have no user and no
    password."""

    nodes: tuple[Node, ...]
    tls: bool = False
    username: str = ""
    password: str = ""
    password_file: str = ""
    """In place of the password, for who reads files."""
    sasl_mechanism: Mechanism = "SCRAM-SHA-512"
    ca_file: str = ""
    """Certificates (PEM) that those of the servers are checked with; "" for the system's."""
    cert_file: str = ""
    """Certificate and key (PEM) that are shown to the servers."""

    def __str__(self) -> str:
        return f"{'kafka+ssl' if self.tls else 'kafka'}://{self.bootstrap}"

    def __repr__(self) -> str:
        return f"KafkaAddress({self})"

    @property
    def bootstrap(self) -> str:
        """As Kafka's own programs take it."""
        return ",".join(map(str, self.nodes))


def parse_address(url: str) -> KafkaAddress:
    """Read `kafka[+ssl]://[user:password@]host[:port][,host[:port]...][?option=value&...]`; see `split_url`."""
    parts = split_url(url, SCHEMES, (*TLS_OPTIONS, *LOGIN_OPTIONS))
    hosts, _, path = parts.place.partition("/")
    if path:
        raise ValueError("has something behind a '/'; what topics begin with is set by kafka.prefix")
    if not parts.username and (parts.password is not None or "password_file" in parts.options):
        raise ValueError("has a password without a user; write user:password@, or user@ and password_file")
    tls = parts.scheme == "kafka+ssl"
    for name in TLS_OPTIONS:
        if name in parts.options and not tls:
            raise ValueError(f"has the option {name}, which is for kafka+ssl://")
    try:
        mechanism = msgspec.convert(parts.options.get("sasl_mechanism", "SCRAM-SHA-512"), Mechanism)
    except msgspec.ValidationError:
        raise ValueError("has a sasl_mechanism that is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512") from None
    return KafkaAddress(
        nodes=parse_nodes(hosts, DEFAULT_PORT),
        tls=tls,
        username=parts.username,
        password=parts.password or "",
        password_file=parts.options.get("password_file", ""),
        sasl_mechanism=mechanism,
        ca_file=parts.options.get("ca_file", ""),
        cert_file=parts.options.get("cert_file", ""),
    )
