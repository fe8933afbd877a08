"""A Lua script that runs inside Redis, known there by its hash."""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files

from msgspec import Struct


class Script(Struct, frozen=True):
    """`name` is for people, `sha` is what EVALSHA takes, `writes` says that a server that has lost it has to do
    it again."""

    name: str
    source: bytes
    sha: bytes
    writes: bool = True


def script(name: str, source: bytes, *, writes: bool = True) -> Script:
    """Make a script of its text, with the SHA-1 that EVALSHA names it by."""
    return Script(name, source, sha1(source, usedforsecurity=False).hexdigest().encode(), writes)


def read_script(name: str, *, writes: bool = True) -> Script:
    """`scripts/<name>.lua` of this package."""
    return script(name, (files(__package__) / "scripts" / f"{name}.lua").read_bytes(), writes=writes)
