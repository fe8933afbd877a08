"""Each listener with the settings that hold for it: its own table over the sections `tls` and `websocket`."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from embermq.edge.settings import (
    API_KINDS,
    Address,
    ListenerSettings,
    OwnSettings,
    TlsSettings,
    UnixAddress,
    WebSocketSettings,
    parse_address,
)

KINDS = ("mqtt", "mqtts", "ws", "wss")
OVER_TLS = ("mqtts", "wss", "https", "grpcs")
OVER_WEBSOCKET = ("ws", "wss")
Tables = Mapping[str, Mapping[str, object]]
"""Address to what `[listener."address"]` sets."""
_TLS_KEYS = frozenset(TlsSettings.__struct_fields__)
_WEBSOCKET_KEYS = frozenset(WebSocketSettings.__struct_fields__)
_OWN_KEYS = frozenset(OwnSettings.__struct_fields__)


class Listener(Struct, frozen=True):
    """`tls` and `websocket` are None where they are not spoken; `table` is the name of its table, with `given` keys."""

    kind: str
    address: Address | UnixAddress
    own: OwnSettings
    tls: TlsSettings | None
    websocket: WebSocketSettings | None
    table: str
    given: frozenset[str]

    def key(self, name: str) -> str:
        """The setting that gave `name` its value for this listener."""
        if name in self.given or name in _OWN_KEYS:
            return f"{self.table}.{name}"
        return f"{'tls' if name in _TLS_KEYS else 'websocket'}.{name}"

    def __str__(self) -> str:
        return f"listeners.{self.kind} {self.address}"


def table_name(address: str) -> str:
    """The name of a listener's table, as TOML writes it."""
    return f'listener."{address}"'


def compose_listeners(
    settings: ListenerSettings, tables: Tables, tls: TlsSettings, websocket: WebSocketSettings
) -> list[Listener]:
    """Those of MQTT and then those of the API, in the order of the schema. Raises ValueError, with the setting first,
    for what cannot be."""
    own_tables = _by_address(tables)
    found: list[Listener] = []
    for kind in (*KINDS, *API_KINDS):
        for address in settings.tcp_addresses(kind) if kind in API_KINDS else settings.addresses(kind):
            written, given = own_tables.get(address, (str(address), {}))
            listener = Listener(
                kind,
                address,
                OwnSettings(**_some(given, _OWN_KEYS)),  # type: ignore[arg-type]
                replace(tls, **_some(given, _TLS_KEYS)) if kind in OVER_TLS else None,
                replace(websocket, **_some(given, _WEBSOCKET_KEYS)) if kind in OVER_WEBSOCKET else None,
                table_name(written),
                frozenset(given),
            )
            _check(listener)
            found.append(listener)
    there = {listener.address for listener in found}
    for address, (written, _) in own_tables.items():
        if address not in there:
            listed = ", ".join(map(str, sorted(there, key=str))) or "none"
            raise ValueError(f"{table_name(written)}: no listener has this address; there is {listed}")
    return found


def _by_address(tables: Tables) -> dict[Address | UnixAddress, tuple[str, Mapping[str, object]]]:
    found: dict[Address | UnixAddress, tuple[str, Mapping[str, object]]] = {}
    for written, given in tables.items():
        try:
            address = parse_address(written)
        except ValueError as error:
            raise ValueError(f"{table_name(written)}: {error}") from None
        if address in found:
            raise ValueError(f"{table_name(written)}: {table_name(found[address][0])} is the same listener")
        found[address] = (written, given)
    return found


def _some(given: Mapping[str, object], keys: frozenset[str]) -> dict[str, object]:
    return {key: value for key, value in given.items() if key in keys}


def _check(listener: Listener) -> None:
    _check_place(listener)
    _check_kind(listener)
    if listener.tls is not None:
        _check_tls(listener, listener.tls)
    if listener.websocket is not None:
        path = listener.websocket.path
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or set(path) & set(" ?#"):
            raise ValueError(f"{listener.key('path')}: {path!r} is not the path of an address, such as /mqtt")


def _check_place(listener: Listener) -> None:
    """A key that would do nothing is a mistake."""
    for keys, spoken, what in (
        (_TLS_KEYS, listener.tls, "TLS"),
        (_WEBSOCKET_KEYS, listener.websocket, "WebSocket"),
    ):
        misplaced = sorted(listener.given & keys)
        if misplaced and spoken is None:
            raise ValueError(
                f"{listener.key(misplaced[0])}: has no effect, listeners.{listener.kind} is without {what}"
            )
    if listener.own.unix_mode:
        key, mode = listener.key("unix_mode"), listener.own.unix_mode
        if not isinstance(listener.address, UnixAddress):
            raise ValueError(f"{key}: has no effect, {listener.address} is not a Unix socket")
        if len(mode) != 3 or set(mode) - set("01234567"):
            raise ValueError(f"{key}: {mode!r} is not three octal digits, such as 660")


def _check_kind(listener: Listener) -> None:
    """What is for MQTT has no effect on the API, and the other way round; tokens are not sent in the clear."""
    is_api, is_plain = listener.kind in API_KINDS, listener.tls is None
    wrong = listener.given & _OWN_KEYS
    wrong = wrong - {"plaintext"} if is_api and is_plain else wrong if is_api else wrong & {"plaintext"}
    if wrong:
        raise ValueError(
            f"{listener.key(min(wrong))}: has no effect on a listener of listeners.{listener.kind}"
        )
    if is_api and is_plain and not (listener.address.is_loopback or listener.own.plaintext):
        raise ValueError(
            f"listeners.{listener.kind}: {listener.address} is not on loopback, and tokens would come in the clear; "
            f"use listeners.{listener.kind}s, or, where a proxy or a private network sees to that, set "
            f"{listener.table}.plaintext"
        )


def _check_tls(listener: Listener, tls: TlsSettings) -> None:
    if not tls.cert:
        raise ValueError(f"listeners.{listener.kind}: needs {listener.key('cert')}, the server's certificate")
    asked = tls.client_certificates != "off"
    if asked and not tls.ca:
        raise ValueError(
            f"{listener.key('client_certificates')}: {tls.client_certificates!r} needs {listener.key('ca')}, "
            "the certificates of those who sign the clients'"
        )
    if tls.crl and not asked:
        raise ValueError(
            f"{listener.key('crl')}: has no effect while {listener.key('client_certificates')} is 'off'"
        )
