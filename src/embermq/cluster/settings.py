"""Settings of a cluster; composed by app into the broker's one schema (section `cluster`)."""

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from embermq.ports.store_url import without_password


class ClusterSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Brokers that know of one another; see [cluster](cluster.md)."""

    etcd: str = ""
    """Where nodes find one another: `etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...][/NAME]`, and `etcd+ssl://`
    likewise, with [options](cluster.md#etcd); NAME is the cluster, `embermq` unless it is given. Needs a Kafka and a
    Redis in `stores`. Empty: this broker is alone, and knows of nobody."""
    node: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{0,160}$")] = ""
    """What this node is called, as no other one is; empty is the name of the machine."""
    lease_ttl_s: Annotated[int, Meta(ge=2, le=600)] = 5
    """A node that etcd has not heard of for that long is out: another one may take over."""
    slots: Annotated[int, Meta(ge=1, le=16)] = 1
    """How many nodes serve at a time, each for its share of the clients; the others stand by. The same on every node,
    and for good."""
    listen: str = ""
    """`HOST:PORT` for other nodes, which hand over clients that belong to this one; needed with `slots` above 1."""
    advertise: str = ""
    """How other nodes reach that, when it is not by `listen`."""
    plaintext: bool = False
    """Whether `listen` may be elsewhere than on loopback without `cert`: then what nodes say is not encrypted."""
    cert: str = ""
    """File with this node's certificate, for the name or address that others call it by, those between it and the
    root, and its private key (PEM). With it nodes speak TLS, and let in whose certificate `ca` has signed. Read again
    at SIGHUP."""
    ca: str = ""
    """File with the certificates of those who sign the nodes' certificates (PEM), and nobody else's."""

    def __repr__(self) -> str:
        """Without passwords, so that no log can hold them."""
        etcd = without_password(self.etcd)
        return f"ClusterSettings(etcd={etcd!r}, node={self.node!r}, lease_ttl_s={self.lease_ttl_s})"

    def shown(self) -> "ClusterSettings":
        """The same without passwords."""
        return replace(self, etcd=without_password(self.etcd))
