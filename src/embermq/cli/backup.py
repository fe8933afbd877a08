"""`embermq backup`: copy the data directory while the broker runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from embermq.app.config import Settings
from embermq.app.settings import SQLITE, StoreSettings
from embermq.cli.options import with_settings


@with_settings
def command(
    settings: Settings,
    target: Annotated[Path, typer.Argument(metavar="TO", help="A directory that is new or empty.")],
) -> None:
    """Copy the data directory as it is now. The broker may be running."""
    from embermq.cli.message_bar import ByteBar
    from embermq.tools.backup import make_backup

    directory = Path(settings.data_dir)
    with ByteBar() as bar:
        made = make_backup(directory, target, bar.show)
    print(f"{target}: {made}")
    for left_out in _left_out(settings.stores):
        print(left_out)


def _left_out(stores: StoreSettings) -> Iterator[str]:
    """What a broker with these settings keeps elsewhere."""
    shown = stores.shown()
    if stores.log != SQLITE:
        yield (
            f"the message log and the logs of applications are not in it: they are in {shown.log}; "
            f"copy that with its own tools, after this"
        )
    if stores.session != SQLITE:
        yield (
            f"sessions, what is queued for them, and retained messages are not in it: they are in {shown.session}; "
            f"copy that with its own tools, before this"
        )
    if stores.static != SQLITE:
        yield (
            f"accounts and archived messages are not in it: they are in {shown.static}; "
            f"copy that with its own tools, before this"
        )
