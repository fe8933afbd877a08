"""`embermq import-embedded`: a broker that began with a data directory goes on with Kafka and Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embermq.app.config import Settings
from embermq.cli.options import with_settings
from embermq.cli.terminal import Told, table

HEADINGS = ("", "here", "there")


@with_settings
def command(
    settings: Settings,
    source: Annotated[
        Path, typer.Argument(metavar="FROM", help="The data directory of the embedded broker.")
    ],
    *,
    leave: Annotated[
        list[str] | None,
        typer.Option("--leave", metavar="KIND", help="Leave archive, lake or rules there; repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and count; write nothing to the servers.")
    ] = False,
) -> Told:
    """Move an embedded broker to Kafka and Redis.

    Sessions, messages, queues and accounts of a broker that does not run go into the empty servers that the settings
    name, those of the broker that is to run there. Its clients go on as they are. An import that was broken off goes
    on when it is run again.
    """
    from embermq.cli.message_bar import MessageBar
    from embermq.tools.embedded_import.job import import_embedded

    with MessageBar("imported") as bar:
        found = import_embedded(source, settings, left=leave or (), dry_run=dry_run, progress=bar.show)
    there = found.there
    rows = [
        (kind, f"{count:,}", "" if there is None else f"{there[kind]:,}")
        for kind, count in found.counts.items()
        if count
    ]
    lines = table([HEADINGS, *rows], names=1) if rows else ["nothing is there"]
    if found.lost:
        lines.append(f"{found.lost} messages of application logs are lost: nobody has them any more")
    lines += [f"kept in {settings.data_dir}, not taken from {source}: {name}" for name in found.kept]
    lines += [f"left in {source}: {kind}" for kind in found.left]
    lines.append(
        "nothing was written to the servers"
        if there is None
        else f"{source}: imported; start the broker on them"
    )
    return Told(found, lines)
