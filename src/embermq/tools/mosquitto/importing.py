"""Writes the configuration that takes the place of `mosquitto.conf`, and takes the accounts over."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from embermq import __version__
from embermq.access.authorization.settings import AuthorizationSettings
from embermq.app.accounts import Imported, accounts_of, users_of_file
from embermq.app.authorization import RuleFiles
from embermq.app.config import Settings, load_configuration
from embermq.app.errors import ConfigError, IsThere, RulesFileError, UserError
from embermq.model.client_type import ClientType
from embermq.tools.mosquitto.conf import (
    BRIDGE_ONLY,
    BY_LISTENER,
    DEFAULT_LISTENER,
    EVERYWHERE,
    OVER_TLS,
    PLUGINS,
    PREFIXES,
    SHUTS_LISTENER,
    ConfLine,
    Convert,
    Value,
    ValueNotTaken,
    ValueTaken,
    read_conf,
    reason,
    truth,
)

DEFAULT_PORT = "1883"
_OF_DEFAULT_LISTENER = frozenset(
    (
        *("bind_address", "port", "protocol", "socket_domain", "mount_point", "bind_interface", "psk_hint"),
        *("cafile", "capath", "certfile", "keyfile", "crlfile", "ciphers", "tls_version"),
        *("require_certificate", "use_identity_as_username", "use_subject_as_username"),
        *("use_username_as_clientid", "max_connections", "max_qos"),
    )
)
"""Mosquitto opens the default listener when one of these stands before any `listener`."""
_SECURITY = frozenset(
    (
        "acl_file",
        "allow_anonymous",
        "allow_zero_length_clientid",
        "password_file",
        "psk_file",
    )
)
"""What is one listener's with `per_listener_settings true`, and else everybody's, wherever it stands."""


class LineFate(StrEnum):
    """What became of a line."""

    CARRIED = "carried"
    DIFFERS = "differs"
    LEFT = "left"


class LineOutcome(Struct):
    """`text` has the settings that take the line's place, how they differ, or why there is none. A bridge's or plugin's
    value may be a secret, so `value` is empty there."""

    place: str
    name: str
    value: str
    fate: LineFate
    text: str


class CarriedConf(Struct):
    """`settings` by section and key; listeners by kind in `listeners`, with their tables; files that are still to
    be read."""

    settings: dict[str, Value]
    listeners: dict[str, list[str]]
    tables: dict[str, dict[str, Value]]
    outcomes: list[LineOutcome]
    password_file: str = ""
    acl_file: str = ""
    shut: str = ""
    """Why nobody may do anything until an operator has said what; "" when the ACL says it, or everything is allowed."""

    def of(self, name: str) -> LineOutcome:
        """The outcome of the last line with that name."""
        return next(outcome for outcome in reversed(self.outcomes) if outcome.name == name)


def carry(lines: list[ConfLine], *, has_ipv6: bool = True) -> CarriedConf:
    """Everything but the contents of files."""
    return _Carrier(lines, has_ipv6=has_ipv6).carried()


class _Carrier:
    def __init__(self, lines: list[ConfLine], *, has_ipv6: bool) -> None:
        self._lines = lines
        self._has_ipv6 = has_ipv6
        self._by_listener = any(
            line.name == "per_listener_settings" and line.value in ("true", "1") for line in lines
        )
        self._outcomes: dict[ConfLine, LineOutcome] = {}
        self._found = CarriedConf({}, {}, {}, [])

    def carried(self) -> CarriedConf:
        owners = sorted({line.owner for line in self._lines if line.name == "listener"})
        if any(line.owner == DEFAULT_LISTENER and self._opens_default(line) for line in self._lines):
            owners.insert(0, DEFAULT_LISTENER)
        self._found.listeners = {kind: [] for kind in ("mqtt", "mqtts", "ws", "wss")}
        if not owners:
            self._local_only()
        opened = [owner for owner in owners if self._open(owner)]
        self._files(opened or [DEFAULT_LISTENER])
        for line in self._lines:
            if line not in self._outcomes:
                self._everywhere(line)
        self._found.outcomes = [self._outcomes[line] for line in self._lines]
        return self._found

    def _opens_default(self, line: ConfLine) -> bool:
        return line.name in _OF_DEFAULT_LISTENER or (self._by_listener and line.name in _SECURITY)

    # ---- one listener

    def _own(self, owner: int) -> dict[str, ConfLine]:
        """Its lines by name, the last one of each; those that decide who may enter wherever they stand, unless they are
        each listener's own."""
        return {
            line.name: line
            for line in self._lines
            if line.owner == owner or (line.name in _SECURITY and not self._by_listener)
        }

    def _local_only(self) -> None:
        """Mosquitto without a listener: this machine alone, and without a name too."""
        addresses = [f"127.0.0.1:{DEFAULT_PORT}", *([f"[::1]:{DEFAULT_PORT}"] if self._has_ipv6 else [])]
        self._found.listeners["mqtt"] = addresses
        own = self._own(DEFAULT_LISTENER)
        table: dict[str, Value] = {"allow_anonymous": True}
        self._take(own, "allow_anonymous", "allow_anonymous", truth, table)
        self._take(own, "allow_zero_length_clientid", *BY_LISTENER["allow_zero_length_clientid"], table)
        self._found.tables |= {address: dict(table) for address in addresses}

    def _open(self, owner: int) -> bool:
        """Whether it can be what it was; else its lines say why it is not opened."""
        own = self._own(owner)
        problem = self._why_shut(own)
        addresses = [] if problem else self._addresses(own)
        taken = {address for listed in self._found.listeners.values() for address in listed}
        if both := taken & set(addresses):
            problem = f"{min(both)} is another listener's already"
        if problem:
            for line in own.values():
                if line.owner == owner and line.name in _OF_LISTENER:
                    self._leave(line, f"the listener is not opened: {problem}")
            return False
        is_tls = "certfile" in own
        kind = ("wss" if is_tls else "ws") if _is_websocket(own) else ("mqtts" if is_tls else "mqtt")
        table: dict[str, Value] = {"allow_anonymous": False}
        self._take(own, "allow_anonymous", "allow_anonymous", truth, table)
        for name, (key, convert) in BY_LISTENER.items():
            self._take(own, name, key, convert, table)
        if table.get("connections_max") == 0:
            del table["connections_max"]
        if is_tls:
            self._tls(own, table)
        if _is_websocket(own):
            self._take(own, "websockets_origin", "origins", lambda text: ValueTaken([text]), table)
            self._settle(own["protocol"], LineFate.DIFFERS, f"listeners.{kind}, at the path /mqtt alone")
        elif "protocol" in own:
            self._settle(own["protocol"], LineFate.CARRIED, f"listeners.{kind}")
        self._found.listeners[kind] += addresses
        self._found.tables |= {address: dict(table) for address in addresses}
        for name in ("listener", "port", "bind_address", "socket_domain"):
            if name in own:
                self._settle(own[name], LineFate.CARRIED, f"listeners.{kind} {', '.join(addresses)}")
        return True

    def _why_shut(self, own: dict[str, ConfLine]) -> str:
        for name in SHUTS_LISTENER:
            if name in own and not (name == "bind_interface" and _host(own)):
                return f"{name}, {reason(name)}"
        protocol = own["protocol"].value if "protocol" in own else "mqtt"
        if protocol not in ("mqtt", "websockets"):
            return f"its protocol is {protocol}"
        wants = _is_true(own, "require_certificate")
        if wants and "certfile" in own and "cafile" not in own:
            return f"require_certificate needs the file cafile; capath, {reason('capath')}"
        port = _port(own)
        if not (port.isascii() and port.isdigit() and int(port) < 65_536):
            return f"{port!r} is no port"
        return "" if int(port) or _host(own).startswith("/") else "port 0 needs the path of a Unix socket"

    def _addresses(self, own: dict[str, ConfLine]) -> list[str]:
        host, port = _host(own), _port(own)
        if host.startswith("/"):
            return [f"unix:{host}"]
        if host:
            return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
        domain = own["socket_domain"].value if "socket_domain" in own else ""
        every = {"ipv4": f"0.0.0.0:{port}", "ipv6": f"[::]:{port}"}
        if domain in every:
            return [every[domain]]
        return [every["ipv4"], *([every["ipv6"]] if self._has_ipv6 else [])]

    def _tls(self, own: dict[str, ConfLine], table: dict[str, Value]) -> None:
        for name, (key, convert) in OVER_TLS.items():
            self._take(own, name, key, convert, table)
        for key in ("cert", "key"):
            if key in table:
                table[key] = self._file(own["certfile" if key == "cert" else "keyfile"])
        asks = _is_true(own, "require_certificate")
        if asks:
            table["client_certificates"], table["ca"] = "required", self._file(own["cafile"])
            by_subject = _is_true(own, "use_subject_as_username")
            by_name = _is_true(own, "use_identity_as_username")
            table["identity"] = "subject" if by_subject else "cn" if by_name else "off"
            if "crlfile" in own:
                table["crl"] = self._file(own["crlfile"])
        place = {
            "require_certificate": "client_certificates",
            "cafile": "ca",
            "use_subject_as_username": "identity",
            "use_identity_as_username": "identity",
            "crlfile": "crl",
        }
        for name, key in place.items():
            if name not in own:
                continue
            if asks and name == "use_subject_as_username" and _is_true(own, name):
                self._settle(
                    own[name], LineFate.DIFFERS, "identity, the subject as RFC 4514 has it (CN=a,O=b)"
                )
            elif asks or name == "require_certificate":
                self._settle(own[name], LineFate.CARRIED, key)
            else:
                self._leave(own[name], "has no effect without require_certificate, nor had it there")

    def _file(self, line: ConfLine) -> str:
        """Absolute; what cannot be read is told."""
        path = _path(line.value)
        if os.access(path, os.R_OK):
            self._settle(line, LineFate.CARRIED, path)
        else:
            self._settle(line, LineFate.DIFFERS, f"{path} cannot be read now; a start of the broker needs it")
        return path

    def _take(
        self, own: dict[str, ConfLine], name: str, key: str, convert: Convert, into: dict[str, Value]
    ) -> None:
        line = own.get(name)
        if line is None:
            return
        try:
            taken = convert(line.value)
        except ValueNotTaken as error:
            self._leave(line, str(error))
            return
        into[key] = taken.value
        self._settle(line, LineFate.DIFFERS if taken.differs else LineFate.CARRIED, taken.differs or key)

    # ---- the whole broker

    def _files(self, opened: list[int]) -> None:
        """Who may enter and who may do what is the same on every listener here."""
        plugins = [line for line in self._lines if line.name in PLUGINS]
        for name in ("password_file", "acl_file"):
            named = {owner: self._own(owner).get(name) for owner in opened}
            lines = {line.value: line for line in named.values() if line is not None}
            if len(lines) > 1:
                self._differ(name)
                continue
            for line in lines.values():
                value = _path(line.value)
                if name == "password_file":
                    self._found.password_file = value
                else:
                    self._found.acl_file = value
                what = "embermq users" if name == "password_file" else "authorization.mosquitto_acl"
                partly = any(line is None for line in named.values())
                for same in (one for one in named.values() if one is not None):
                    fate = LineFate.DIFFERS if partly else LineFate.CARRIED
                    self._settle(same, fate, what + ", on every listener" * partly)
        if plugins:
            self._found.shut, self._found.acl_file = "a plugin of Mosquitto decided who may do what", ""
            self._settle_all(
                "acl_file", LineFate.LEFT, "a plugin decided beside it; name it when it is enough alone"
            )
        self._client_ids(opened)

    def _differ(self, name: str) -> None:
        """Taking them together would open one listener to those of another."""
        if name == "acl_file":
            self._found.shut = "listeners of Mosquitto had different ACL files"
            why = "listeners have different files, and here all have one: write one, authorization.mosquitto_acl"
        else:
            why = "listeners have different files, and accounts enter everywhere here: embermq users import takes one"
        for line in self._lines:
            if line.name == name:
                self._leave(line, why)

    def _client_ids(self, opened: list[int]) -> None:
        name = "use_username_as_clientid"
        own = [self._own(owner) for owner in opened]
        if any(_is_true(one, name) for one in own):
            self._found.settings["clients.username_as_client_id"] = True
            everywhere = all(_is_true(one, name) for one in own)
            self._settle_all(
                name,
                LineFate.CARRIED if everywhere else LineFate.DIFFERS,
                "clients.username_as_client_id" + ("" if everywhere else ", on every listener"),
            )
        else:
            self._settle_all(name, LineFate.CARRIED, "clients.username_as_client_id")

    def _everywhere(self, line: ConfLine) -> None:
        """A line that no listener has taken."""
        if line.name in EVERYWHERE:
            self._take({line.name: line}, line.name, *EVERYWHERE[line.name], self._found.settings)
        elif line.name in ("include_dir", "per_listener_settings"):
            self._settle(line, LineFate.CARRIED, "read" if line.name == "include_dir" else "by listener")
        elif line.name in _OF_LISTENER or (line.name in _SECURITY and line.name != "psk_file"):
            self._leave(line, _unused(line.name))
        else:
            self._leave(line, reason(line.name))

    # ---- outcomes

    def _settle(self, line: ConfLine, fate: LineFate, text: str) -> None:
        before = self._outcomes.get(line)
        if before is not None and before.fate is not LineFate.CARRIED:
            return  # what is known already says more
        is_secret = line.name in BRIDGE_ONLY or line.name.startswith(tuple(PREFIXES))
        self._outcomes[line] = LineOutcome(line.place, line.name, "" if is_secret else line.value, fate, text)

    def _leave(self, line: ConfLine, why: str) -> None:
        self._settle(line, LineFate.LEFT, why)

    def _settle_all(self, name: str, fate: LineFate, text: str) -> None:
        for line in self._lines:
            if line.name == name:
                self._settle(line, fate, text)


_OF_LISTENER = _OF_DEFAULT_LISTENER | {"listener", "websockets_origin", *BY_LISTENER} - _SECURITY


def _unused(name: str) -> str:
    if name in ("ciphers", "capath", "mount_point", "bind_interface", "psk_hint"):
        return reason(name)
    return "another line has its place, or its listener has no use for it"


def _is_true(own: dict[str, ConfLine], name: str) -> bool:
    return name in own and own[name].value in ("true", "1")


def _is_websocket(own: dict[str, ConfLine]) -> bool:
    return "protocol" in own and own["protocol"].value == "websockets"


def _port(own: dict[str, ConfLine]) -> str:
    if "listener" in own:
        return own["listener"].value.partition(" ")[0]
    return own["port"].value if "port" in own else DEFAULT_PORT


def _host(own: dict[str, ConfLine]) -> str:
    if "listener" in own and (host := own["listener"].value.partition(" ")[2].strip()):
        return host
    return own["bind_address"].value if "bind_address" in own else ""


def _path(value: str) -> str:
    """As Mosquitto opens it: from the working directory."""
    return str(Path(value).absolute())


def toml_lines(found: CarriedConf) -> Iterator[str]:
    """Sections of TOML, in the order of their names."""

    def written(value: Value) -> str:
        return json.dumps(value, ensure_ascii=False)

    sections: dict[str, dict[str, Value]] = {"listeners": {}}
    for kind, addresses in found.listeners.items():
        if addresses or kind == "mqtt":  # without a word the broker would open its own default
            sections["listeners"][kind] = list(addresses)
    for key, value in sorted(found.settings.items()):
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = value
    for address, table in found.tables.items():
        sections[f"listener.{json.dumps(address)}"] = table
    if top := sections.pop("", None):
        yield from (f"{name} = {written(value)}" for name, value in top.items())
    for section, values in sections.items():
        yield f"\n[{section}]"
        yield from (f"{name} = {written(value)}" for name, value in values.items())


_NEEDED = frozenset(("listener", "port", "password_file", "acl_file", "clientid_prefixes", *PLUGINS))
"""What clients depend on: an operator has to look when one of these is left."""


class ImportedConf(Struct, frozen=True):
    """What was written, or would be; `users` is None when there was no file of passwords that could be taken."""

    text: str
    outcomes: list[LineOutcome]
    users: Imported | None
    shut: str

    @property
    def is_whole(self) -> bool:
        """Whether clients find what they found before."""
        left = {outcome.name for outcome in self.outcomes if outcome.fate is LineFate.LEFT}
        return not self.shut and not left & _NEEDED


def import_conf(
    conf: Path, output: Path, *, data_dir: str | None, replace: bool = False, dry_run: bool = False
) -> ImportedConf:
    """Write `output` and take the accounts, or do neither. Raises UserError for a file that cannot be read or written,
    and IsThere for one that is there."""
    if output.exists() and not (replace or dry_run):
        raise IsThere(f"{output} is there already; --replace overwrites it")
    found = carry(read_conf(conf), has_ipv6=has_ipv6())
    if data_dir is not None:
        found.settings["data_dir"] = str(Path(data_dir).absolute())
    _take_acl(found)
    closed = output.absolute().with_name(f"{output.stem}-closed.acl")
    if found.shut:
        found.settings["authorization.mosquitto_acl"] = str(closed)
    settings = _checked(found)
    text = _text(found, conf)
    users = _take_users(found, settings, dry_run=dry_run)
    if not dry_run:
        if found.shut:
            _write(
                closed,
                f"# Nobody may do anything: {found.shut}.\n# Write who may do what, and name it here.\n",
            )
        _write(output, text)
    return ImportedConf(text, found.outcomes, users, found.shut)


def has_ipv6() -> bool:
    """Whether this machine can listen on an address of IPv6."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _take_acl(found: CarriedConf) -> None:
    """A file that cannot be taken whole is not taken: without its denials others could do more."""
    if not found.acl_file:
        return
    try:
        RuleFiles(AuthorizationSettings(mosquitto_acl=found.acl_file)).read()
    except RulesFileError as error:
        _leave(found, "acl_file", str(error).removeprefix("authorization.mosquitto_acl: "))
        found.shut = "the ACL file of Mosquitto could not be taken"
    else:
        found.settings["authorization.mosquitto_acl"] = found.acl_file


def _take_users(found: CarriedConf, settings: Settings, *, dry_run: bool) -> Imported | None:
    if not found.password_file:
        return None
    try:
        users = users_of_file(Path(found.password_file), ClientType.DEVICE)
    except (UserError, OSError) as error:
        _leave(found, "password_file", str(error))
        return None
    if dry_run and not Path(settings.data_dir).exists():
        return Imported(len(users), added=len(users), replaced=0, kept=0)
    with accounts_of(settings, create=not dry_run) as accounts:
        return accounts.import_users(users, dry_run=dry_run)


def _leave(found: CarriedConf, name: str, why: str) -> None:
    for outcome in found.outcomes:
        if outcome.name == name:
            outcome.fate, outcome.text = LineFate.LEFT, why


def _checked(found: CarriedConf) -> Settings:
    """As a start of the broker would read it; what one setting makes impossible for another is left, and told."""
    while True:
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write("\n".join(toml_lines(found)))
            file.flush()
            try:
                return load_configuration(config_file=Path(file.name)).settings
            except ConfigError as error:
                _drop(found, error)


def _drop(found: CarriedConf, error: ConfigError) -> None:
    for key in list(found.settings):
        problems = [problem for problem in error.problems if f"{key}:" in problem]
        if problems and key != "data_dir":
            del found.settings[key]
            for name, (taken_by, _) in EVERYWHERE.items():
                if key == taken_by:
                    _leave(found, name, problems[0][problems[0].index(f"{key}:") :].partition(" (from ")[0])
            return
    raise error


def _text(found: CarriedConf, conf: Path) -> str:
    heading = f"# Written by embermq {__version__} from {conf}; docs/configuration.md has all settings."
    return "\n".join([heading, *toml_lines(found), ""])


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{path.name}.{os.getpid()}")
        made.write_text(text)
        made.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
