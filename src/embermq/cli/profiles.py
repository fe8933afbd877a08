"""Profiles: brokers by name, with address, token and authority, in a file of whoever types the commands."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

from embermq.app.errors import OptionError

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
