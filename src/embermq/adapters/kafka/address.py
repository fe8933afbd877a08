"""Which Kafka is meant by a URL, how it lets us in, and the settings of the message log there."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from embermq.ports.store_address import OPTIONS, StoreAddress, address_fields
from embermq.ports.store_url import split_url


class KafkaSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Kafka is spoken to when `stores.log` names one; see [stores](stores.md)."""

    prefix: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,160}$")] = "embermq"
    """What the names of all topics and groups begin with."""
    adopt_log: bool = False
    """Go on with a message log that this data directory does not know: that of a data directory that was lost, or a
    topic that was restored from a copy. No other broker may be using it."""
    replication_factor: Annotated[int, Meta(ge=0, le=32)] = 0
    """Copies of each partition when the topic is made; 0 is what the cluster has for new topics."""
    min_insync_replicas: Annotated[int, Meta(ge=0, le=32)] = 0
    """So many of them must have a message before it is acknowledged, set when the topic is made; 0 is the
    cluster's."""
    request_timeout_s: Annotated[float, Meta(ge=1, le=600)] = 10.0
    """How long one question to Kafka may take; a start waits three times as long. A message that is to be stored waits
    without limit."""

    @property
    def start_timeout_s(self) -> float:
        """How long a start waits for Kafka, which may be starting too."""
        return 3 * self.request_timeout_s


def check_settings(settings: KafkaSettings) -> None:
    """Raise ValueError, naming the setting, for limits that contradict one another."""
    replicas = settings.replication_factor
    if replicas and settings.min_insync_replicas > replicas:
        raise ValueError(
            f"kafka.min_insync_replicas: {settings.min_insync_replicas} is more than kafka.replication_factor, "
            f"{replicas}: nothing could ever be acknowledged"
        )
    if settings.prefix in (".", ".."):
        raise ValueError(f"kafka.prefix: {settings.prefix!r} is no name")


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
