"""Commands that ask the broker that runs on a data directory."""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import typer
from msgspec import Struct

from embermq.app.config import Settings
from embermq.app.control import ControlClient, RemoteClient
from embermq.app.errors import OptionError
from embermq.cli.options import CaFile, ProfileName, TokenOf, Url, configuration, offer
from embermq.cli.terminal import Told, say_made, tell

FILE = Path("embermq") / "profiles.toml"


class Profile(Struct, frozen=True, forbid_unknown_fields=True):
    """Of one broker. A path may begin with `~`; one that is not absolute is beside the file."""

    url: str
    token_file: str | None = None
    ca: str | None = None


class Reached(Struct, frozen=True):
    """What a command is told of the broker that it asks: `url` None for one on a data directory."""

    url: str | None
    token_file: Path | None
    ca_file: Path | None


def profiles_file() -> Path:
    """`~/.config/embermq/profiles.toml`, or below what XDG_CONFIG_HOME names."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(folder) if Path(folder).is_absolute() else Path.home() / ".config") / FILE


def reached(name: str | None, url: str | None, token_file: Path | None, ca_file: Path | None) -> Reached:
    """The broker of a profile, where one is named; options win over what it says. Raises OptionError."""
    if name is None:
        return Reached(url, token_file, ca_file)
    if url is not None:
        raise OptionError("--profile and --url: one of them")
    file = profiles_file()
    try:
        found = msgspec.convert(tomllib.loads(file.read_text("utf-8-sig")), dict[str, Profile])
    except OSError as error:
        raise OptionError(f"--profile {name}: {file}: {error.strerror}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise OptionError(f"{file}: {error}") from None
    if name not in found:
        raise OptionError(f"{file} has no profile {name!r}; it has {', '.join(sorted(found)) or 'none'}")
    profile = found[name]
    return Reached(
        profile.url, token_file or _path(file, profile.token_file), ca_file or _path(file, profile.ca)
    )


def _path(file: Path, text: str | None) -> Path | None:
    return None if text is None else file.parent / Path(text).expanduser()


Do = TypeVar("Do", bound=Callable[..., Any])


def running_broker(data_dir: str | None, config: Path | None, assignments: list[str] | None) -> ControlClient:
    """Of the settings that the options give. Raises UserError when none runs there."""
    return ControlClient(Path(configuration(config, assignments, data_dir).settings.data_dir))


def broker_elsewhere(
    profile: str | None, url: str | None, token_file: Path | None, ca_file: Path | None
) -> ControlClient | None:
    """By its API, where an address or a profile is given. The token is the first line of its file. Raises OSError,
    OptionError."""
    there = reached(profile, url, token_file, ca_file)
    if there.url is None:
        return None
    token = _token_in(there.token_file) if there.token_file is not None else ""
    return RemoteClient(there.url, token, there.ca_file)


def _token_in(file: Path) -> str:
    """An editor may have put a byte order mark in front. Raises OSError, OptionError for what no token can be."""
    token = file.read_text("utf-8-sig", errors="replace").partition("\n")[0].strip()
    if not (token.isascii() and token.isprintable() and token):
        raise OptionError(f"{file}: its first line is no token, as embermq tokens create prints one")
    return token


FINDERS: dict[str, tuple[Any, object]] = {
    "url": (Url, None),
    "profile": (ProfileName, None),
    "token_file": (TokenOf, None),
    "ca_file": (CaFile, None),
}


def broker_command(
    app: typer.Typer,
    name: str,
    *,
    here: Callable[[Settings], ControlClient] | None = None,
) -> Callable[[Do], Do]:
    """Add a command of this name, see `client_command`."""

    def register(do: Do) -> Do:
        app.command(name)(client_command(here=here)(do))
        return do

    return register


def client_command(
    *,
    here: Callable[[Settings], ControlClient] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """A command whose first parameter is the running broker, or one elsewhere. With `here` no broker has to run: it is
    what that makes of the settings in force. It has the options that find the broker, and `--json` when it returns
    Told; else it returns lines, or None when it has written them, perhaps as JSON, itself."""

    def shown(do: Callable[..., Any]) -> Callable[..., None]:

        def run(
            *,
            data_dir: str | None,
            config: Path | None,
            assignments: list[str] | None,
            url: str | None,
            profile: str | None,
            token_file: Path | None,
            ca_file: Path | None,
            as_json: bool = False,
            **given: Any,
        ) -> None:
            if writes_json:
                given["as_json"] = as_json
            broker = broker_elsewhere(profile, url, token_file, ca_file)
            directory = None
            if broker is None and here is not None:
                settings = configuration(config, assignments, data_dir).settings
                directory, broker = Path(settings.data_dir), here(settings)
            was_there = directory is None or directory.exists()
            with broker or running_broker(data_dir, config, assignments) as client:
                told = do(client, **given)
            if told is not None:
                tell(told if isinstance(told, Told) else Told(None, told), as_json=as_json)
            if not was_there and directory is not None and directory.exists():
                say_made(directory)
            if client.missing:
                slots = ", ".join(sorted(client.missing))
                typer.echo(
                    f"not all: no node has answered for what is of slot {slots} of the cluster", err=True
                )

        writes_json = "as_json" in inspect.signature(do).parameters
        return offer(run, do, FINDERS)

    return shown
