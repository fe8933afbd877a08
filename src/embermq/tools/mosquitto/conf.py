"""The lines of `mosquitto.conf` and what it includes, what each setting is here, and why some are not carried over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from embermq.app.errors import UserError

CONF_BYTES_MAX = 4 * 1024 * 1024
FILES_MAX = 1_000
DEFAULT_LISTENER = 0
"""The owner of lines that stand before the first `listener` of their file."""


class ConfLine(Struct, frozen=True):
    """One setting; `owner` is the number of its listener, `place` the file and line as people name them."""

    place: str
    name: str
    value: str
    owner: int


def read_conf(path: Path) -> list[ConfLine]:
    """All lines in the order in which Mosquitto takes them. Raises UserError with the file, and its line, that cannot
    be read."""
    return list(_Reader().lines(path, is_main=True))


class _Reader:
    def __init__(self) -> None:
        self._listeners = 0
        self._files = 0

    def lines(self, path: Path, *, is_main: bool) -> Iterator[ConfLine]:
        owner = DEFAULT_LISTENER
        for number, text in enumerate(_text(path).split("\n"), 1):
            name, _, rest = text.strip().partition(" ")
            if not name or name.startswith("#"):
                continue
            value = rest.strip()
            if name == "listener":
                self._listeners += 1
                owner = self._listeners
            yield ConfLine(f"{path}:{number}", name, value, owner)
            if name == "include_dir" and is_main:
                # Only the main file includes others, and in each the lines before a `listener` are the default one's.
                for included in self._included(Path(value), f"{path}:{number}"):
                    yield from self.lines(included, is_main=False)

    def _included(self, folder: Path, place: str) -> list[Path]:
        try:
            found = sorted(
                (entry for entry in folder.iterdir() if entry.name.endswith(".conf")),
                # The upper case of each letter before its lower case, as Mosquitto sorts them.
                key=lambda entry: ([(letter.lower(), letter) for letter in entry.name]),
            )
        except OSError as error:
            raise UserError(f"{place}: cannot read the folder {folder}: {error.strerror or error}") from None
        self._files += len(found)
        if self._files > FILES_MAX:
            raise UserError(f"{place}: {folder} has {self._files} files, more than the largest {FILES_MAX}")
        return found


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(CONF_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > CONF_BYTES_MAX:
        raise UserError(f"{path} has more than the largest possible {CONF_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: is not UTF-8") from None


_BRIDGE = "there are no bridges: run a program that subscribes there and publishes here"
_LOG = "lines go to standard error, and the service manager keeps them (docs/operations.md)"
_DISK = "everything is on disk before it is acknowledged: log.durability says how"
_CIPHER = "ciphers are those of Python's ssl module, with TLS 1.2 or 1.3"
_ENGINE = "keys are read from PEM files"
_PSK = (
    "there is no TLS with pre-shared keys: give clients certificates (embermq certs client NAME) or passwords"
)
_MEMORY = "memory is bounded by the limits of its parts (docs/limits.md)"
_SERVICE = "the service manager does that: embermq service install"
PLUGIN = (
    "there are no plugins: accounts (embermq users add), an HTTP hook or tokens decide who may enter, rules who may do "
    "what"
)
_PLUGIN_OPTION = "belongs to a plugin"

REASONS: Mapping[str, str] = {
    **dict.fromkeys(("connection", "address", "addresses", "topic"), _BRIDGE),
    **dict.fromkeys(
        ("log_dest", "log_facility", "log_timestamp", "log_timestamp_format", "websockets_log_level"), _LOG
    ),
    "connection_messages": "connections and their ends are always logged within 100 lines a second",
    **dict.fromkeys(("persistence", "autosave_interval", "autosave_on_changes"), _DISK),
    **dict.fromkeys(
        ("persistence_location", "persistence_file"),
        "sessions and retained messages that Mosquitto has stored are not read: have them published again, as "
        "docs/from-mosquitto.md says",
    ),
    **dict.fromkeys(("ciphers", "ciphers_tls1.3", "dhparamfile"), _CIPHER),
    **dict.fromkeys(("tls_engine", "tls_engine_kpass_sha1", "tls_keyform"), _ENGINE),
    **dict.fromkeys(("psk_file", "psk_hint"), _PSK),
    **dict.fromkeys(("memory_limit", "max_inflight_bytes"), _MEMORY),
    **dict.fromkeys(("pid_file", "user", "daemon"), _SERVICE),
    **dict.fromkeys(("auth_plugin", "plugin", "global_plugin", "plugin_load", "plugin_use"), PLUGIN),
    "auth_plugin_deny_special_chars": "a name with + or # in it fills in no pattern of an ACL, always",
    "allow_duplicate_messages": "a message comes once for each matching subscription, as MQTT has it",
    "capath": "a folder of certificates is not read: put them into one file, tls.ca",
    "auto_id_prefix": "client ids that the broker makes begin with ember-",
    "check_retain_source": "the publisher of a retained message must still have the right, always",
    "clientid_prefixes": "rules say who may use which client id: action connect, docs/authorization.md#client-ids",
    "http_dir": "no files are served over HTTP",
    "max_topic_alias_broker": "mqtt.topic_alias_maximum is for both directions",
    "mount_point": "topics get no prefix",
    "bind_interface": "name the address of the interface in the listener",
    "queue_qos0_messages": "messages of QoS 0 are not stored for absent clients",
    "retain_expiry_interval": "retained messages stay until their publisher's expiry",
    "set_tcp_nodelay": "it is always on",
    "store_clean_interval": "there is no such interval",
    "upgrade_outgoing_qos": "the QoS of a message is never raised",
    "websockets_headers_size": "a WebSocket request may have 8 KiB",
    "enable_control_api": "operators use the commands of embermq, and its API",
}

PREFIXES: Mapping[str, str] = {
    "bridge_": _BRIDGE,
    "remote_": _BRIDGE,
    "local_": _BRIDGE,
    "notification": _BRIDGE,
    "auth_opt_": _PLUGIN_OPTION,
    "plugin_opt_": _PLUGIN_OPTION,
}

BRIDGE_ONLY = frozenset(
    (
        *("cleansession", "clientid", "idle_timeout", "keepalive_interval", "password", "restart_timeout"),
        *("round_robin", "start_type", "threshold", "try_private", "username"),
    )
)

PLUGINS = frozenset(("auth_plugin", "plugin", "global_plugin", "plugin_load", "plugin_use"))

SHUTS_LISTENER = ("mount_point", "bind_interface", "psk_hint", "tls_engine")
"""A listener with one of these is not opened: without it more clients could reach it, or more topics through it."""


def reason(name: str) -> str:
    """Why `name` is not carried over."""
    if name in REASONS:
        return REASONS[name]
    if name in BRIDGE_ONLY:
        return _BRIDGE
    for prefix, why in PREFIXES.items():
        if name.startswith(prefix):
            return why
    return "is not known here, nor to Mosquitto 2.0"


Value = bool | int | str | list[str]


class ValueNotTaken(ValueError):
    """The world's fault: Mosquitto knows the value, and here there is none like it. The text says why."""


class ValueTaken(Struct, frozen=True):
    """The value here, and how it differs; "" for not at all."""

    value: Value
    differs: str = ""


Convert = Callable[[str], ValueTaken]


def whole(none: int, most: int, *, least: int = 0) -> Convert:
    """A number; Mosquitto's 0 has no limit, which is `none` here."""

    def convert(text: str) -> ValueTaken:
        number = _number(text)
        if number == 0:
            return ValueTaken(none, "" if none == 0 else f"no limit there; the largest here is {none}")
        if number > most:
            return ValueTaken(most, f"the largest here is {most}")
        if number < least:
            return ValueTaken(least, f"the least here is {least}")
        return ValueTaken(number)

    return convert


def connections(text: str) -> ValueTaken:
    """Mosquitto's -1 has no limit, which is 0 here."""
    return ValueTaken(0) if text == "-1" else whole(0, 1_000_000)(text)


def truth(text: str) -> ValueTaken:
    """Mosquitto takes 1 and 0 too."""
    if text in ("true", "1"):
        return ValueTaken(True)
    if text in ("false", "0"):
        return ValueTaken(False)
    raise ValueNotTaken("is neither true nor false")


def retain_off(text: str) -> ValueTaken:
    """`retain_available false` is a feature that is off."""
    return ValueTaken([] if truth(text).value else ["retain"])


def text_value(text: str) -> ValueTaken:
    """A text, taken as it is. Raises ValueNotTaken when it is empty."""
    if not text:
        raise ValueNotTaken("has no value")
    return ValueTaken(text)


def seconds(text: str) -> ValueTaken:
    """Mosquitto's 2h, 14d, 3w, 1m and 1y, whose months and years have 30 and 365 days."""
    units = {"h": 3_600, "d": 86_400, "w": 604_800, "m": 2_592_000, "y": 31_536_000}
    if not text or text[-1] not in units:
        raise ValueNotTaken("is no time like 14d")
    return whole(0, 4_294_967_294)(str(_number(text[:-1]) * units[text[-1]]))


def versions(text: str) -> ValueTaken:
    """Of MQTT, that Mosquitto counts 3, 4 and 5."""
    named = {"3": "3.1", "4": "3.1.1", "5": "5.0"}
    found = [part.strip() for part in text.split(",")]
    if unknown := [part for part in found if part not in named]:
        raise ValueNotTaken(f"names {unknown[0]!r}, which is none of 3, 4, 5")
    return ValueTaken([named[part] for part in found])


def tls_version(text: str) -> ValueTaken:
    """The oldest version of TLS, as `tls.min_version` has it. Raises ValueNotTaken."""
    if text == "tlsv1.1":
        return ValueTaken("1.2", "TLS 1.1 is refused here; the oldest is 1.2")
    if text in ("tlsv1.2", "tlsv1.3"):
        return ValueTaken(text.removeprefix("tlsv"))
    raise ValueNotTaken("is none of tlsv1.2, tlsv1.3")


def log_level(text: str) -> ValueTaken:
    """Of Mosquitto's kinds of lines only the most talkative ones are a level."""
    if text in ("all", "debug"):
        return ValueTaken("debug")
    raise ValueNotTaken("lines are chosen by level here, logging.level, which is left at info")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueNotTaken("is no whole number")
    return int(text)


BYTES_MAX = 1_099_511_627_776
EVERYWHERE: Mapping[str, tuple[str, Convert]] = {
    "global_max_clients": ("mqtt.sessions_total_max", whole(0, 100_000_000)),
    "global_max_connections": ("clients.connections_max", connections),
    "log_type": ("logging.level", log_level),
    "max_inflight_messages": ("mqtt.inflight_max", whole(65_535, 65_535)),
    "max_keepalive": ("mqtt.keep_alive_max_s", whole(65_535, 65_535)),
    "max_packet_size": ("mqtt.packet_bytes_max", whole(268_435_460, 268_435_460, least=20)),
    "max_queued_bytes": ("device.queue_bytes_max", whole(BYTES_MAX, BYTES_MAX, least=1_024)),
    "max_queued_messages": ("device.queue_limit", whole(65_535, 65_535)),
    "max_topic_alias": ("mqtt.topic_alias_maximum", whole(0, 65_535)),
    "message_size_limit": ("mqtt.payload_bytes_max", whole(0, 268_435_455)),
    "persistent_client_expiration": ("mqtt.session_expiry_max_s", seconds),
    "retain_available": ("mqtt.unavailable", retain_off),
    "sys_interval": ("mqtt.sys_interval_s", whole(0, 86_400)),
}
"""Settings of the whole broker: the one that takes their place, and how the value is read."""

BY_LISTENER: Mapping[str, tuple[str, Convert]] = {
    "accept_protocol_versions": ("protocol_versions", versions),
    "allow_zero_length_clientid": ("allow_empty_client_id", truth),
    "max_connections": ("connections_max", connections),
    "max_qos": ("max_qos", whole(0, 2)),
}
"""Settings of one listener: the key of its table."""

OVER_TLS: Mapping[str, tuple[str, Convert]] = {
    "certfile": ("cert", text_value),
    "keyfile": ("key", text_value),
    "tls_version": ("min_version", tls_version),
}
"""The same, where there is TLS; those about the certificates of clients belong together and are not here."""
