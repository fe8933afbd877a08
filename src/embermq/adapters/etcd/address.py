"""Which etcd is meant by a URL, and how it lets us in, without ever showing the password in it."""

from __future__ import annotations

import re

from embermq.ports.store_address import OPTIONS, StoreAddress, address_fields
from embermq.ports.store_url import split_url

SCHEMES = ("etcd", "etcd+ssl")
DEFAULT_PORT = 2379
DEFAULT_NAME = "embermq"
NAME = re.compile(r"[a-zA-Z0-9._-]{1,160}")


class EtcdAddress(StoreAddress, frozen=True):
    """A few members of an etcd, and the cluster of ours that is meant."""

    name: str = DEFAULT_NAME

    def __str__(self) -> str:
        return f"{'etcd+ssl' if self.tls else 'etcd'}://{','.join(map(str, self.nodes))}/{self.name}"


def parse_address(url: str) -> EtcdAddress:
    """Read `etcd[+ssl]://[user:password@]host[:port][,host[:port]...][/name][?option=value&...]`; see `split_url`."""
    parts = split_url(url, SCHEMES, OPTIONS)
    hosts, _, name = parts.place.partition("/")
    if name and not NAME.fullmatch(name):
        raise ValueError(f"has a name behind the '/' that does not fit {NAME.pattern}")
    has_password = parts.password is not None or "password_file" in parts.options
    if bool(parts.username) != has_password:
        raise ValueError("has a user without a password, or a password without a user; write user:password@")
    fields = address_fields(parts, hosts, DEFAULT_PORT, tls_schemes=("etcd+ssl",))
    return EtcdAddress(name=name or DEFAULT_NAME, **fields)
