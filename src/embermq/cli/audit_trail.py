"""`embermq audit`: who has changed what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from embermq.admin import access_operations as ops
from embermq.admin.trail import ChangeView, ListChangesRequest
from embermq.app.errors import UserError
from embermq.cli.control import broker_elsewhere
from embermq.cli.options import (
    AsJson,
    Assignments,
    CaFile,
    ConfigFile,
    DataDir,
    ProfileName,
    TokenOf,
    Url,
    configuration,
)
from embermq.cli.terminal import print_json, shown, table

By = Annotated[str, typer.Option("--by", metavar="WHO", help="Only theirs: 'token NAME', 'user NAME'.")]
Operation = Annotated[str, typer.Option("--operation", metavar="NAME", help="Only this one, such as PutBan.")]
Last = Annotated[int, typer.Option("--last", metavar="N", min=1, max=1_000, help="How many, the newest.")]


def command(
    *,
    by: By = "",
    operation: Operation = "",
    last: Last = 50,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    url: Url = None,
    profile: ProfileName = None,
    token_file: TokenOf = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Show who has changed what, newest last. It needs no running broker."""
    found: Sequence[ChangeView]
    elsewhere = broker_elsewhere(profile, url, token_file, ca_file)
    if elsewhere is not None:
        with elsewhere as broker:
            given = islice(broker.pages(ops.LIST_CHANGES, by=by, what=operation, limit=last), last)
            found = [msgspec.convert(one, ChangeView) for one in given]
    else:
        from embermq.app.audit_trail import changes

        directory = Path(configuration(config, assignments, data_dir).settings.data_dir)
        if not directory.is_dir():
            raise UserError(f"there is no data directory {directory}; name it with --data-dir")
        found = changes(directory, ListChangesRequest(by=by, what=operation, limit=last))
    if as_json:
        print_json(found)
        return
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
    for line in table([("at", "by", "over", "operation", "object", "outcome"), *rows], names=6):
        print(line.rstrip())


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
