"""Settings of the doors: listeners, what they speak, and who may enter.

Sections `listeners`, `tls`, `websocket`, `clients`, and one table `listener."address"` for each listener that differs.
"""

from ipaddress import ip_address
from typing import Annotated, Literal

from msgspec import Meta, Struct

from embermq.sessions.listener_terms import VersionName

API_KINDS = ("http", "https", "grpc", "grpcs")
"""Listeners that are not for MQTT, and never Unix sockets."""
DEFAULT_GRPC = "127.0.0.1:9091"
UNIX_PREFIX = "unix:"
UNIX_PATH_BYTES_MAX = 107
"""What the kernel takes as the path of a Unix socket."""


class Address(Struct, frozen=True, order=True):
    """The address of a listener: a host name or address without brackets, and a port; port 0 = any free one."""

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


class UnixAddress(Struct, frozen=True, order=True):
    """The path of a listener on a Unix socket; only this machine can reach it."""

    path: str

    def __str__(self) -> str:
        return UNIX_PREFIX + self.path

    @property
    def is_loopback(self) -> bool:
        """Always true: a Unix socket is reached from this machine alone."""
        return True


def parse_address(text: str) -> Address | UnixAddress:
    """Read `host:port`, `[::1]:port`, `*:port` (every IPv4 interface) or `unix:/path`.

    Raises ValueError that says what is wrong with the text.
    """
    if text.strip().startswith(UNIX_PREFIX):
        return _parse_unix(text)
    return parse_host_port(text)


def _parse_unix(text: str) -> UnixAddress:
    path = text.strip().removeprefix(UNIX_PREFIX)
    size = len(path.encode(errors="surrogateescape"))
    if not path or "\0" in path:
        raise ValueError(f"{text!r} is not unix:/path, for example unix:/run/embermq/mqtt.sock")
    if size > UNIX_PATH_BYTES_MAX:
        raise ValueError(
            f"{text!r}: the path has {size} bytes, more than the largest possible {UNIX_PATH_BYTES_MAX}"
        )
    return UnixAddress(path)


def parse_host_port(text: str) -> Address:
    """The same without Unix sockets."""
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
    """MQTT over TLS, usually on port 8883; needs `tls.cert`."""
    ws: str | tuple[str, ...] = ()
    """MQTT over WebSocket, usually on port 8083."""
    wss: str | tuple[str, ...] = ()
    """MQTT over WebSocket and TLS, usually on port 8084; needs `tls.cert`."""
    http: str | tuple[str, ...] = "127.0.0.1:8080"
    """`/health`, `/ready`, `/metrics` and `/api/v1`, on loopback: off it `https` serves them."""
    https: str | tuple[str, ...] = ()
    """The same over TLS, usually on port 8443; needs `tls.cert`."""
    grpc: str | tuple[str, ...] = DEFAULT_GRPC
    """The API of durable queues over gRPC, on loopback. When another program has this default address, the broker logs
    it and starts without."""
    grpcs: str | tuple[str, ...] = ()
    """The same over TLS; needs `tls.cert`."""

    @property
    def has_default_grpc(self) -> bool:
        """Whether nobody has asked for gRPC: other programs use its port too."""
        return self.grpc == DEFAULT_GRPC

    def addresses(self, listener: str) -> tuple[Address | UnixAddress, ...]:
        """The addresses of `mqtt`, `wss`, ...; raises ValueError as `parse_address` does."""
        return tuple(parse_address(text) for text in self._texts(listener))

    def tcp_addresses(self, listener: str) -> tuple[Address, ...]:
        """The same for a listener that cannot have a Unix socket."""
        return tuple(parse_host_port(text) for text in self._texts(listener))

    def _texts(self, listener: str) -> list[str]:
        value: str | tuple[str, ...] = getattr(self, listener)
        texts = (value,) if isinstance(value, str) else value
        return [text for text in texts if text.strip()]


class TlsSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Certificates of the listeners `mqtts`, `wss`, `https` and `grpcs`: PEM files, read at the start and again at
    SIGHUP."""

    cert: str = ""
    """File with the server's certificate, followed by those between it and the root."""
    key: str = ""
    """File with its private key, without a passphrase; empty = it is in `cert`."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest TLS version that is accepted."""
    client_certificates: Literal["off", "optional", "required"] = "off"
    """Whether clients are asked for a certificate, and whether they must have one. It has to be signed by `ca`."""
    ca: str = ""
    """File with the certificates of those who sign the certificates of clients."""
    crl: str = ""
    """File with their certificate revocation lists: a client whose certificate is on one is refused."""
    identity: Literal["cn", "subject", "off"] = "cn"
    """The user name that a client's certificate proves, without a password: its common name, its whole subject
    (`CN=pump-7,O=Acme`), or none."""


class WebSocketSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The listeners `ws` and `wss`."""

    path: str = "/mqtt"
    """The path of MQTT; other paths are answered with 404."""
    origins: tuple[str, ...] = ()
    """Web pages that may connect, with scheme and host as browsers name them; empty = all pages. Clients
    other than browsers send no origin and may always connect."""


class OwnSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a table `[listener."address"]` may set besides the keys of `tls` and `websocket`."""

    plaintext: bool = False
    """Whether a listener of `http` or `grpc` may be elsewhere than on loopback: behind a proxy that speaks TLS, or in a
    private network. Their only key; the others are for MQTT."""
    proxy_protocol: bool = False
    """Whether every connection comes through a proxy that begins it with a PROXY protocol header, version 1 or 2. What
    the header says is believed, so nobody else may reach the listener."""
    allow_anonymous: bool | None = None
    """Whether clients without a user name may enter here, whatever `clients.allow_anonymous` says."""
    connections_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Connections at a time on this listener, which count in `clients.connections_max` too; one more is refused with
    0x89. 0 = no limit of its own."""
    protocol_versions: Annotated[tuple[VersionName, ...], Meta(min_length=1)] | None = None
    """Versions of MQTT that are spoken here, whatever `mqtt.protocol_versions` says."""
    max_qos: Annotated[int, Meta(ge=0, le=2)] | None = None
    """The highest QoS of the clients of this listener, whatever `mqtt.max_qos` says."""
    allow_empty_client_id: bool | None = None
    """Whether they may leave their client id to us, whatever `mqtt.unavailable` says."""
    client_type: Literal["device", "application"] = "device"
    """`application`: every client of this listener is of type APPLICATION."""
    unix_mode: str = ""
    """Permissions of a Unix socket, such as `660`; empty = as the umask has it."""


class ClientSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which clients may connect, and as what type."""

    application_ids: tuple[str, ...] = ()
    """Shell wildcards over client ids: a client that matches one is of type APPLICATION."""
    username_as_client_id: bool = False
    """Whether a client's user name is its client id, whatever it sends; one without a user name is refused with 0x87.
    Mosquitto's `use_username_as_clientid`."""
    allow_anonymous: bool = False
    """Whether clients without a user name are accepted on other listeners than loopback ones, where they
    always are."""
    connect_timeout_s: Annotated[float, Meta(ge=0.1, le=600)] = 5.0
    """From the connection's start to its CONNECT, TLS and WebSocket handshakes included."""
    connections_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Connections at a time, on all listeners; one more is refused with 0x89 (server busy). 0 = as many as the process
    may open files (`ulimit -Hn`), less 128; in a cluster with several slots a third of that."""
    connections_per_address_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """The same from one IPv4 address, or from one IPv6 network of 64 bits; refused with 0x97. Where a proxy tells the
    address of its clients, that one counts. 0 = no limit."""
    connect_rate_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """New connections a second, on all listeners, as many at once after a quiet second; refused with 0x9F. 0 = no
    limit."""


def check_settings(settings: ListenerSettings) -> None:
    """Raise ValueError, naming the setting, for an address that cannot be."""
    seen: dict[Address | UnixAddress, str] = {}
    for listener in settings.__struct_fields__:
        try:
            addresses: tuple[Address | UnixAddress, ...] = (
                settings.tcp_addresses(listener) if listener in API_KINDS else settings.addresses(listener)
            )
        except ValueError as error:
            raise ValueError(f"listeners.{listener}: {error}") from None
        for address in addresses:
            if isinstance(address, Address) and not address.port:
                continue
            if address in seen:
                other = "" if seen[address] == listener else f", in listeners.{seen[address]} too"
                raise ValueError(f"listeners.{listener}: {address} is named twice{other}")
            seen[address] = listener
