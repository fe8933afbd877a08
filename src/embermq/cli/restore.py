"""`embermq restore`: a data directory from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embermq.cli.options import Assignments, ConfigFile, DataDir, configuration


def command(
    source: Annotated[Path, typer.Argument(metavar="FROM", help="A directory that embermq backup has made.")],
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Make a data directory from a backup. --data-dir names it, and it has to be new or empty."""
    from embermq.app.backup import restore_backup
    from embermq.cli.byte_bar import ByteBar

    directory = Path(configuration(config, assignments, data_dir).settings.data_dir)
    with ByteBar() as bar:
        found = restore_backup(source, directory, bar.show)
    print(f"{directory}: restored as of {found.created}: {found}")
