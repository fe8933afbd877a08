"""What the addresses of all stores have in common: servers, who we are there, and how what is said is kept secret."""

from __future__ import annotations

import ssl
from typing import Any

from msgspec import Struct

from embermq.ports.store_node import Node, parse_nodes
from embermq.ports.store_url import UrlParts

TLS_OPTIONS = ("ca_file", "cert_file")
OPTIONS = (*TLS_OPTIONS, "password_file")


class StoreAddress(Struct, frozen=True):
    """A few servers by which all are found, and what they ask for. Its text and repr have no user and no password."""

    nodes: tuple[Node, ...]
    tls: bool = False
    username: str = ""
    password: str = ""
    password_file: str = ""
    """In place of the password, for who reads files."""
    ca_file: str = ""
    """Certificates (PEM) that those of the servers are checked with; "" for the system's."""
    cert_file: str = ""
    """Certificate and key (PEM) that are shown to the servers."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"


def address_fields(
    parts: UrlParts, hosts: str, default_port: int, *, tls_schemes: tuple[str, ...]
) -> dict[str, Any]:
    """Those of a StoreAddress, by name. Raises ValueError for what is for another scheme."""
    options, tls = parts.options, parts.scheme in tls_schemes
    for name in TLS_OPTIONS:
        if name in options and not tls:
            raise ValueError(
                f"has the option {name}, which is for {' and '.join(f'{s}://' for s in tls_schemes)}"
            )
    found = {name: options[name] for name in OPTIONS if name in options}
    who = {"username": parts.username, "password": parts.password or ""}
    return {"nodes": tuple(parse_nodes(hosts, default_port)), "tls": tls, **who, **found}


def tls_context(address: StoreAddress, setting: str) -> ssl.SSLContext:
    """Raises ValueError, naming the setting and the option, when a file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=address.ca_file or None)
    except OSError as error:
        raise _unfit(f"{setting}: ca_file {address.ca_file!r}", "certificates", error) from None
    if address.cert_file:
        try:
            context.load_cert_chain(address.cert_file)
        except OSError as error:
            raise _unfit(
                f"{setting}: cert_file {address.cert_file!r}", "certificate and key", error
            ) from None
    return context


def _unfit(place: str, wanted: str, error: OSError) -> ValueError:
    return ValueError(
        f"{place}: {f'no {wanted} (PEM) in it' if isinstance(error, ssl.SSLError) else error.strerror}"
    )
