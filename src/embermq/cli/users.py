"""`embermq users`: the accounts that clients enter with."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from enum import StrEnum
from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer

from embermq.app.errors import UserError
from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, configuration
from embermq.model.client_type import ClientType

app = typer.Typer(help="Accounts: add, list, remove.", no_args_is_help=True, rich_markup_mode=None)


class TypeOption(StrEnum):
    """Client types by the names people use."""

    DEVICE = "device"
    APPLICATION = "application"


Name = Annotated[str, typer.Argument(help="The user name that the client sends.")]


@app.command("add")
def add(
    name: Name,
    *,
    client_type: Annotated[
        TypeOption, typer.Option("--type", help="device: few messages each, at once; application: a flood.")
    ] = TypeOption.DEVICE,
    scram: Annotated[
        bool, typer.Option("--scram", help="Let the account also enter by SCRAM-SHA-256 and SCRAM-SHA-512.")
    ] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Add an account; the password is asked for, or read as one line from standard input."""
    from embermq.app.accounts import accounts_of, check_name

    check_name(name)
    settings = configuration(config, assignments, data_dir).settings
    password = _read_password()
    with accounts_of(Path(settings.data_dir), create=True) as accounts:
        accounts.add(
            name,
            password,
            ClientType[client_type.name],
            scram_iterations=settings.scram.iterations if scram else None,
        )
    print(f"added {name} ({client_type.value}{', scram' if scram else ''})")


@app.command("list")
def list_all(
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show every account."""
    from embermq.app.accounts import accounts_of

    with accounts_of(_directory(data_dir, config, assignments)) as accounts:
        users = accounts.all()
    rows = [
        {
            "name": user.name,
            "type": user.client_type.name.lower(),
            "disabled": user.disabled,
            "scram": bool(user.scram),
            "created": datetime.fromtimestamp(user.created_ms / 1000, UTC).isoformat(timespec="seconds"),
        }
        for user in users
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        marks = [mark for mark in ("scram", "disabled") if row[mark]]
        print("  ".join([str(row["name"]), str(row["type"]), *marks, f"since {row['created']}"]))


@app.command("remove")
def remove(
    name: Name, *, data_dir: DataDir = None, config: ConfigFile = None, assignments: Assignments = None
) -> None:
    """Remove an account; a session that is connected stays until it disconnects."""
    from embermq.app.accounts import accounts_of

    with accounts_of(_directory(data_dir, config, assignments)) as accounts:
        accounts.remove(name)
    print(f"removed {name}")


def _directory(data_dir: str | None, config: Path | None, assignments: list[str] | None) -> Path:
    return Path(configuration(config, assignments, data_dir).settings.data_dir)


def _read_password() -> bytes:
    if not sys.stdin.isatty():
        return sys.stdin.buffer.readline(128 * 1024).rstrip(b"\r\n")
    password = getpass("Password: ")
    if getpass("The same again: ") != password:
        raise UserError("the two passwords differ; nothing was added")
    return password.encode(errors="surrogateescape")
