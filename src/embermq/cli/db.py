"""`embermq db`: the tables of static data on an SQL server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, configuration
from embermq.cli.terminal import print_json

if TYPE_CHECKING:
    from embermq.app.config import Settings
    from embermq.database.database_url import DatabaseUrl

app = typer.Typer(
    help="Tables on an SQL server: status, upgrade.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("status")
def status(
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show the version of the tables. Shows also which one this program needs; ends with 1 when they differ."""
    from embermq.app.static_store import static_status

    settings, url = _static(data_dir, config, assignments)
    found = static_status(settings, url)
    if as_json:
        print_json(found)
    else:
        told = {
            "empty": "nothing of EmberMQ is there",
            "behind": f"version {found.version}",
            "current": f"version {found.version}, current",
            "newer": f"version {found.version}, written by a newer EmberMQ",
        }
        print(f"{found.store}: {told[found.state]}; this version of EmberMQ needs {found.newest}")
        if found.pending:
            print(f"an upgrade would run {', '.join(found.pending)}")
    raise typer.Exit(0 if found.state == "current" else 1)


@app.command("upgrade")
def upgrade(
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Create the tables, or upgrade them to what this program needs. Brokers may be running."""
    from embermq.app.static_store import upgrade_static

    settings, url = _static(data_dir, config, assignments)
    before = upgrade_static(settings, url)
    if as_json:
        print_json(before)
    elif before.pending:
        print(f"{before.store}: brought from version {before.version} to {before.newest}")
    else:
        print(f"{before.store}: version {before.version} already")


def _static(
    data_dir: str | None, config: Path | None, assignments: list[str] | None
) -> tuple[Settings, DatabaseUrl]:
    from embermq.app.errors import UserError
    from embermq.app.static_store import static_url

    settings = configuration(config, assignments, data_dir).settings
    url = static_url(settings)
    if url is None:
        raise UserError("stores.static is sqlite: the broker upgrades the files of the data directory itself")
    return settings, url
