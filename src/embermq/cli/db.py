"""`embermq db`: the tables of static data on an SQL server."""

from __future__ import annotations

from embermq.app.config import Settings
from embermq.cli.options import with_settings
from embermq.cli.terminal import Told, group
from embermq.database.database_url import DatabaseUrl

app = group("Tables on an SQL server: status, upgrade.")


@app.command("status")
@with_settings
def status(settings: Settings) -> Told:
    """Show the version of the tables. Shows also which one this program needs; ends with 1 when they differ."""
    from embermq.app.static_store import static_status

    found = static_status(settings, _url(settings))
    told = {
        "empty": "nothing of EmberMQ is there",
        "current": f"version {found.version}, current",
        "newer": f"version {found.version}, written by a newer EmberMQ",
    }
    line = f"{found.store}: {told[found.state]}; this version of EmberMQ needs {found.newest}"
    return Told(found, [line], 0 if found.state == "current" else 1)


@app.command("upgrade")
@with_settings
def upgrade(settings: Settings) -> Told:
    """Create the tables, or upgrade them to what this program needs. Brokers may be running."""
    from embermq.app.static_store import upgrade_static

    before = upgrade_static(settings, _url(settings))
    done = f"brought from version {before.version} to {before.newest}"
    told = done if before.version < before.newest else f"version {before.version} already"
    return Told(before, [f"{before.store}: {told}"])


def _url(settings: Settings) -> DatabaseUrl:
    from embermq.app.errors import UserError
    from embermq.app.static_store import static_url

    url = static_url(settings)
    if url is None:
        raise UserError("stores.static is sqlite: the broker upgrades the files of the data directory itself")
    return url
