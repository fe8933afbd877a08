"""`embermq audit`: who has changed what."""

from __future__ import annotations

import json
from itertools import islice
from typing import Annotated

import msgspec
import typer

from embermq.admin import access_operations as ops
from embermq.admin.trail import ChangeView
from embermq.app.config import Settings
from embermq.app.control import ControlClient
from embermq.cli.control import client_command
from embermq.cli.terminal import Told, shown, table

By = Annotated[str, typer.Option("--by", metavar="WHO", help="Only theirs: 'token NAME', 'user NAME'.")]
Operation = Annotated[str, typer.Option("--operation", metavar="NAME", help="Only this one, such as PutBan.")]
Last = Annotated[int, typer.Option("--last", metavar="N", min=1, max=1_000, help="How many, the newest.")]


def _here(settings: Settings) -> ControlClient:
    from embermq.app.directory_client import trail_here

    return trail_here(settings)


@client_command(here=_here)
def command(broker: ControlClient, *, by: By = "", operation: Operation = "", last: Last = 50) -> Told:
    """Show who has changed what, newest last. It needs no running broker."""
    given = islice(broker.pages(ops.LIST_CHANGES, by=by, what=operation, limit=last), last)
    found = [msgspec.convert(one, ChangeView) for one in given]
    rows = [
        (
            one.at,
            shown(f"{one.by} {one.peer}".strip()),
            one.over,
            one.operation,
            shown(" ".join(f"{name}={_as_text(value)}" for name, value in one.object.items())),
            shown(one.outcome),
        )
        for one in reversed(found)
    ]
    return Told(found, table([("at", "by", "over", "operation", "object", "outcome"), *rows], names=6))


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
