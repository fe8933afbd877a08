"""`embermq backup`: copy the data directory while the broker runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embermq.app.settings import SQLITE
from embermq.cli.options import Assignments, ConfigFile, DataDir, configuration


def command(
    target: Annotated[Path, typer.Argument(metavar="TO", help="A directory that is new or empty.")],
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Copy the data directory as it is now. The broker may be running."""
    from embermq.app.backup import make_backup
    from embermq.cli.byte_bar import ByteBar

    settings = configuration(config, assignments, data_dir).settings
    directory = Path(settings.data_dir)
    with ByteBar() as bar:
        made = make_backup(directory, target, bar.show)
    print(
        f"{target}: {len(made.files)} files, {made.size_bytes:,} bytes, the log up to offset {made.log_end_offset:,}"
    )
    if settings.stores.session != SQLITE:
        print(
            f"sessions, what is queued for them, and retained messages are not in it: they are in "
            f"{settings.stores.shown().session}; copy that with its own tools, at a later moment than this"
        )
