"""Settings of the doors: listeners and who may enter (sections `listeners` and `clients`)."""

from ipaddress import ip_address
from typing import Annotated

from msgspec import Meta, Struct

SERVED: tuple[str, ...] = ("mqtt", "http")
"""Listeners of this version; the others are in the schema so that they are refused by name."""


class Address(Struct, frozen=True, order=True):
    """Where a listener binds: a host name or address without brackets, and a port; port 0 = any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. A name counts only when it is `localhost`."""
        try:
            return ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str) -> Address:
    """Read `host:port`, `[::1]:port` or `*:port` (every IPv4 interface).

    Raises ValueError that says what is wrong with the text.
    """
    host, colon, port_text = text.strip().rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text!r} is not host:port, for example 127.0.0.1:1883 or [::1]:1883")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            if ip_address(host.partition("%")[0]).version != 6:
                raise ValueError(host)
        except ValueError:
            raise ValueError(f"{text!r}: what stands in brackets is not an IPv6 address") from None
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets, for example [::1]:1883")
    if not (port_text.isascii() and port_text.isdigit()):
        raise ValueError(f"{text!r}: the port {port_text!r} is not a number")
    port = int(port_text) if len(port_text) <= 5 else 65_536
    if port > 65_535:
        raise ValueError(f"{text!r}: the port {port_text} is more than the largest possible 65535")
    return Address("0.0.0.0" if host == "*" else host, port)


class ListenerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each `"host:port"` or a list of them; empty = no such listener.

    IPv6 addresses stand in brackets, `[::1]:1883`; the host `*` is every IPv4 interface, the port 0 any free one.
    """

    mqtt: str | tuple[str, ...] = "127.0.0.1:1883"
    """MQTT over TCP."""
    mqtts: str | tuple[str, ...] = ()
    """MQTT over TLS; not served by this version."""
    ws: str | tuple[str, ...] = ()
    """MQTT over WebSocket; not served by this version."""
    wss: str | tuple[str, ...] = ()
    """MQTT over WebSocket and TLS; not served by this version."""
    http: str | tuple[str, ...] = "127.0.0.1:8080"
    """`/health`, `/ready`, `/metrics` and `/api/v1/pipeline`; without a password, so keep it to yourself."""
    grpc: str | tuple[str, ...] = ()
    """gRPC; not served by this version."""

    def addresses(self, listener: str) -> tuple[Address, ...]:
        """The addresses of `mqtt`, `http`, ...; raises ValueError as `parse_address` does."""
        value: str | tuple[str, ...] = getattr(self, listener)
        texts = (value,) if isinstance(value, str) else value
        return tuple(parse_address(text) for text in texts if text.strip())


class ClientSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may enter, and as what."""

    application_ids: tuple[str, ...] = ()
    """Shell wildcards over client ids: a client that matches one is of type APPLICATION."""
    allow_anonymous: bool = False
    """Whether clients without a user name may enter elsewhere than on loopback listeners, where they always may."""
    connect_timeout_s: Annotated[float, Meta(ge=0.1, le=600)] = 5.0
    """From the connection's start to its CONNECT."""
    password_checks_max: Annotated[int, Meta(ge=1, le=64)] = 2
    """Passwords checked at a time; each takes one thread and 19 MiB while it lasts."""
    password_checks_waiting_max: Annotated[int, Meta(ge=0, le=100_000)] = 1_000
    """Clients that wait for a check; one more is answered with 0x89 (server busy)."""


def check_settings(settings: ListenerSettings) -> None:
    """Raise ValueError, naming the setting, for an address that cannot be, or a listener that is not served."""
    for listener in settings.__struct_fields__:
        try:
            addresses = settings.addresses(listener)
        except ValueError as error:
            raise ValueError(f"listeners.{listener}: {error}") from None
        if addresses and listener not in SERVED:
            raise ValueError(f"listeners.{listener}: not served by this version; leave it empty")
        fixed = [address for address in addresses if address.port]
        for address in fixed:
            if fixed.count(address) > 1:
                raise ValueError(f"listeners.{listener}: {address} is named twice")
