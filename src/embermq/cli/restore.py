"""`embermq restore`: a data directory from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embermq.app.config import Settings
from embermq.cli.options import with_settings


@with_settings
def command(
    settings: Settings,
    source: Annotated[Path, typer.Argument(metavar="FROM", help="A directory that embermq backup has made.")],
) -> None:
    """Make a data directory from a backup. --data-dir names it, and it has to be new or empty."""
    from embermq.cli.message_bar import ByteBar
    from embermq.tools.backup import restore_backup

    directory = Path(settings.data_dir)
    with ByteBar() as bar:
        found = restore_backup(source, directory, bar.show)
    print(f"{directory}: restored as of {found.created}: {found}")
