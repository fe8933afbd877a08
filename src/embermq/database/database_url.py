"""`postgresql://USER:PASSWORD@HOST:PORT/DATABASE` and its relatives, taken apart."""

from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Meta, Struct

from embermq.ports.store_url import without_password


class SqlSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an SQL server is spoken to, where `stores.static` names one."""

    timeout_s: Annotated[float, Meta(ge=0.5, le=3_600)] = 5.0
    """How long opening a connection may take, with PostgreSQL in whole seconds and at least 2; how long the answer to a
    statement may, and how long a call waits for a free connection."""


Kind = Literal["postgresql", "mysql"]
KINDS: dict[str, Kind] = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
PORTS: dict[Kind, int] = {"postgresql": 5432, "mysql": 3306}
Tls = Literal["auto", "off", "require", "verify"]
OPTIONS = ("socket", "tls", "ca_file", "cert_file")
"""What may follow the database."""


class DatabaseUrl(Struct, frozen=True, kw_only=True):
    """A database on a server. `socket`, when it is not empty, is a Unix socket (for PostgreSQL its directory) that is
    used instead of host and port."""

    kind: Kind
    user: str
    password: str
    host: str
    port: int
    socket: str
    database: str
    tls: Tls = "auto"
    """`verify` checks the server's certificate and name, `require` only encrypts, `off` does neither; `auto` is
    `verify` for other machines, and `off` on loopback and Unix sockets."""
    ca_file: str = ""
    """Certificates (PEM) that the server's is checked with; "" for the system's."""
    cert_file: str = ""
    """Certificate and key (PEM) that are shown to the server."""
    shown: str
    """The URL as it may be shown to anybody."""

    def __repr__(self) -> str:
        """Without the password, so that no log can hold it."""
        return f"DatabaseUrl({self.shown!r})"

    @property
    def is_local(self) -> bool:
        """Whether what is sent there stays on this machine."""
        if self.socket or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_url(text: str) -> DatabaseUrl:
    """Raise ValueError for what is not such a URL; its text has no password."""
    # What is no URL may have a password all the same, in front of an `@`.
    shown = without_password(text) if "://" in text else text.rpartition("@")[2]
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # its own text would have a piece of the password, if that is not quoted
        raise ValueError(
            f"{shown!r} is not a URL: a port is at most 65535, and a password is quoted where it is special"
        ) from None
    kind = KINDS.get(parts.scheme)
    if kind is None:
        known = ", ".join(f"{scheme}://" for scheme in KINDS)
        raise ValueError(f"{shown!r} does not begin with one of {known}")
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in database:
        raise ValueError(f"{shown!r} does not name a database: {parts.scheme}://USER:PASSWORD@HOST/DATABASE")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = [name for name in options if name not in OPTIONS] + ["#"] * bool(parts.fragment)
    if unknown:
        raise ValueError(f"{shown!r} has {unknown[0]!r}; only {', '.join(OPTIONS)} may follow the database")
    socket, ca_file, cert_file = (options.get(name, "") for name in ("socket", "ca_file", "cert_file"))
    if not socket and not parts.hostname:
        raise ValueError(f"{shown!r} has neither a host nor socket=")
    try:
        tls = msgspec.convert(options.get("tls", "auto"), Tls)
    except msgspec.ValidationError:
        raise ValueError(f"{shown!r} has a tls= that is none of auto, off, require, verify") from None
    if tls == "off" and (ca_file or cert_file):
        raise ValueError(f"{shown!r} has tls=off, with which ca_file and cert_file would mean nothing")
    return DatabaseUrl(
        kind=kind,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        host=unquote(parts.hostname or ""),
        port=port or PORTS[kind],
        socket=socket,
        database=database,
        tls=tls,
        ca_file=ca_file,
        cert_file=cert_file,
        shown=shown,
    )
