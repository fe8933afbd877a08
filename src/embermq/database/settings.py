"""Settings of SQL servers; composed by app into the broker's one schema (section `sql`)."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Tls = Literal["auto", "off", "require", "verify"]


class SqlSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an SQL server is spoken to, where `stores.static` names one."""

    connections_max: Annotated[int, Meta(ge=1, le=100)] = 5
    """Connections that one process keeps open at most."""
    timeout_s: Annotated[float, Meta(ge=0.5, le=3_600)] = 5.0
    """How long opening a connection may take, with PostgreSQL in whole seconds and at least 2; how long the answer to a
    statement may, and how long a call waits for a free connection."""
    retry_s: Annotated[float, Meta(ge=0, le=60)] = 1.0
    """After the server was not reached, calls fail at once for so long; then one call tries again."""
    tls: Tls = "auto"
    """`verify` checks the server's certificate and name, `require` only encrypts, `off` does neither; `auto` is
    `verify` for other machines, and `off` on loopback and Unix sockets."""
    tls_ca: str = ""
    """File of the authorities that the server's certificate is checked by; empty: the system's."""
    tls_cert: str = ""
    """File of a client certificate, when the server asks for one."""
    tls_key: str = ""
    """File of the key to it; empty: in the same file."""


def check_settings(settings: SqlSettings) -> None:
    """Raise ValueError, naming the setting, for what contradicts itself."""
    if settings.tls_key and not settings.tls_cert:
        raise ValueError("sql.tls_key: there is no sql.tls_cert that it belongs to")
    if settings.tls == "off" and (settings.tls_ca or settings.tls_cert):
        raise ValueError("sql.tls: is off, so sql.tls_ca and sql.tls_cert would mean nothing")
