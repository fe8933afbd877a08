"""`embermq service`: run by systemd."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from embermq.app.errors import UserError
from embermq.cli.options import ConfigFile
from embermq.cli.terminal import group

UNITS = Path("/etc/systemd/system")

app = group("Run by systemd: install.")


@app.command("install")
def install(
    *,
    config: ConfigFile = None,
    user: Annotated[str, typer.Option("--user", help="Who runs it; data goes to /var/lib/USER.")] = "embermq",
    into: Annotated[Path, typer.Option("--into", metavar="DIRECTORY", help="Where units are.")] = UNITS,
    replace: Annotated[bool, typer.Option("--replace", help="Write over another unit of that name.")] = False,
    only_print: Annotated[bool, typer.Option("--print", help="Print the unit and write nothing.")] = False,
) -> None:
    """Write a unit for systemd. It runs this program, shut off from the rest of the machine; nothing is started."""
    from embermq.app.service_unit import UNIT, service_unit

    program = Path(sys.argv[0]).absolute()
    if not os.access(program, os.X_OK):
        raise UserError(f"{program} is not a program that systemd could start; call embermq by its name")
    if config is not None and not config.is_file():
        raise UserError(f"{config} is not a file")
    text = service_unit(program, config.absolute() if config else None, user)
    if only_print:
        print(text, end="")
        return
    path = into / UNIT
    if path.exists() and path.read_text() != text and not replace:
        raise UserError(f"{path} is there and is another one; --replace writes over it")
    fresh = path.with_name(f".{UNIT}.new")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.replace(path)
    print(f"{path} is written. Next:\n  systemctl daemon-reload\n  systemctl enable --now embermq")
