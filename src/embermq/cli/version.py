"""`embermq version`: what runs here."""

from __future__ import annotations

import msgspec

from embermq.cli.options import AsJson
from embermq.cli.terminal import Told, tell


def command(as_json: AsJson = False) -> None:
    """Show versions of EmberMQ, Python, Spark, Java."""
    from embermq.tools.versions import read_versions

    found: dict[str, str] = msgspec.to_builtins(read_versions())
    tell(Told(found, [f"{name:<8} {version}" for name, version in found.items()]), as_json=as_json)
