"""`embermq import`: takes over what a configuration file of Mosquitto says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embermq.cli.options import AsJson, DataDir

EXIT_LEFT = 3


def command(
    file: Annotated[Path, typer.Argument(help="The configuration file of Mosquitto.")],
    *,
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="The configuration file that is written.")
    ] = Path("embermq.toml"),
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite that file.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be written, change nothing.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Take over a configuration of Mosquitto.

    Listeners, limits, accounts, ACL and certificates of a mosquitto.conf, and what it includes. Each line
    that is not carried over, or means something else here, is shown with the reason.

    Exit code 3: clients will miss something, such as a listener or a plugin.
    """
    from msgspec import to_builtins

    from embermq.cli.terminal import print_json, shown
    from embermq.tools.mosquitto.importing import LineFate, import_conf

    found = import_conf(file, output, data_dir=data_dir, replace=replace, dry_run=dry_run)
    if as_json:
        print_json({**to_builtins(found), "output": str(output), "dry_run": dry_run})
        raise typer.Exit(0 if found.is_whole else EXIT_LEFT)
    if dry_run:
        print(found.text)
    by_fate = {fate: [one for one in found.outcomes if one.fate is fate] for fate in LineFate}
    for fate, heading in (
        (LineFate.DIFFERS, "Carried over, but different here"),
        (LineFate.LEFT, "Not carried over"),
    ):
        if by_fate[fate]:
            print(f"{heading}:")
            for one in by_fate[fate]:
                print(f"  {shown(one.place)}  {shown(f'{one.name} {one.value}'.rstrip())}")
                print(f"      {shown(one.text)}")
            print()
    if found.shut:
        print(f"Nobody may publish or subscribe yet, since {found.shut}: see authorization.mosquitto_acl.\n")
    carried = len(found.outcomes) - len(by_fate[LineFate.LEFT])
    would = "would be " if dry_run else ""
    if (users := found.users) is not None:
        print(f"accounts: {users.users} in the file, {would}added {users.added}, kept {users.kept}")
    print(f"{output}: {would}written; {carried} of {len(found.outcomes)} lines are carried over")
    if not dry_run:
        print(f"Start it with: embermq run --config {output}")
    raise typer.Exit(0 if found.is_whole else EXIT_LEFT)
