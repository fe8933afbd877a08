"""Writes the configuration that takes the place of `mosquitto.conf`, and takes the accounts over."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

from msgspec import Struct

from embermq import __version__
from embermq.access.authorization.settings import AuthorizationSettings
from embermq.app.accounts import Imported, accounts_of
from embermq.app.authorization import RuleFiles
from embermq.app.config import Settings, load_configuration
from embermq.app.errors import ConfigError, IsThere, RulesFileError, UserError
from embermq.model.client_type import ClientType
from embermq.tools.mosquitto.carried import CarriedConf, LineFate, LineOutcome, carry, toml_lines
from embermq.tools.mosquitto.conf_lines import read_conf
from embermq.tools.mosquitto.conf_reasons import PLUGINS
from embermq.tools.mosquitto.conf_values import EVERYWHERE

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
    users = None if dry_run else _take_users(found, settings)
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


def _take_users(found: CarriedConf, settings: Settings) -> Imported | None:
    if not found.password_file:
        return None
    with accounts_of(settings, create=True) as accounts:
        try:
            return accounts.import_file(Path(found.password_file), ClientType.DEVICE)
        except (UserError, OSError) as error:
            _leave(found, "password_file", str(error))
    return None


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
