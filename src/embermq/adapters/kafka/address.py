"""Which Kafka is meant by a URL, and how it lets us in, without ever showing the password in it."""

from __future__ import annotations

from typing import Literal

import msgspec

from embermq.ports.store_address import OPTIONS, StoreAddress, address_fields
from embermq.ports.store_url import split_url

SCHEMES = ("kafka", "kafka+ssl")
DEFAULT_PORT = 9092
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


class KafkaAddress(StoreAddress, frozen=True, forbid_unknown_fields=True):
    """A few servers of a cluster."""

    sasl_mechanism: Mechanism = "SCRAM-SHA-512"

    def __str__(self) -> str:
        return f"{'kafka+ssl' if self.tls else 'kafka'}://{self.bootstrap}"

    @property
    def bootstrap(self) -> str:
        """As Kafka's own programs take it."""
        return ",".join(map(str, self.nodes))


def parse_address(url: str) -> KafkaAddress:
    """Read `kafka[+ssl]://[user:password@]host[:port][,host[:port]...][?option=value&...]`; see `split_url`."""
    parts = split_url(url, SCHEMES, (*OPTIONS, "sasl_mechanism"))
    hosts, _, path = parts.place.partition("/")
    if path:
        raise ValueError("has something behind a '/'; what topics begin with is set by kafka.prefix")
    if not parts.username and (parts.password is not None or "password_file" in parts.options):
        raise ValueError("has a password without a user; write user:password@, or user@ and password_file")
    fields = address_fields(parts, hosts, DEFAULT_PORT, tls_schemes=("kafka+ssl",))
    try:
        mechanism = msgspec.convert(parts.options.get("sasl_mechanism", "SCRAM-SHA-512"), Mechanism)
    except msgspec.ValidationError:
        raise ValueError("has a sasl_mechanism that is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512") from None
    return KafkaAddress(sasl_mechanism=mechanism, **fields)
