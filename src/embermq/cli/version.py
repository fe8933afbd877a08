"""`embermq version`: what runs here."""

from __future__ import annotations

import json

import msgspec

from embermq.cli.options import AsJson


def command(as_json: AsJson = False) -> None:
    """Show versions of EmberMQ, Python, Spark, Java."""
    from embermq.app.versions import read_versions

    found: dict[str, str] = msgspec.to_builtins(read_versions())
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for name, version in found.items():
        print(f"{name:<8} {version}")
