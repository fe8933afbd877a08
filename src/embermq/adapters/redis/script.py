"""A Lua script that runs inside Redis, known there by its hash."""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files

from msgspec import Struct


class Script(Struct, frozen=True):
    """`name` is for people, `sha` is what EVALSHA takes."""

    name: str
    source: bytes
    sha: bytes


def script(name: str, source: bytes) -> Script:
    """A script from its text."""
    return Script(name, source, sha1(source, usedforsecurity=False).hexdigest().encode())


def read_script(name: str) -> Script:
    """`scripts/<name>.lua` of this package."""
    return script(name, (files(__package__) / "scripts" / f"{name}.lua").read_bytes())
