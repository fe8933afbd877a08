"""`embermq users`: the accounts that clients enter with."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from enum import StrEnum
from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer

from embermq.app.config import Settings
from embermq.app.errors import OptionError, UserError
from embermq.app.settings import SQLITE
from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, configuration
from embermq.cli.terminal import say_made, shown, table
from embermq.model.client_type import ClientType
from embermq.ports.store_url import without_password

app = typer.Typer(
    help="Accounts: add, list, change, remove, import.", no_args_is_help=True, rich_markup_mode=None
)


class TypeOption(StrEnum):
    """Client types by the names people use."""

    DEVICE = "device"
    APPLICATION = "application"


TypeOfUser = Annotated[
    TypeOption,
    typer.Option(
        "--type", help="device: few messages, at once; application: a flood, from a log of its own."
    ),
]
WithScram = Annotated[
    bool, typer.Option("--scram", help="Let the account also log in by SCRAM-SHA-256 and SCRAM-SHA-512.")
]
Generate = Annotated[
    bool,
    typer.Option(
        "--generate",
        help="Make the password: 128 random bits, shown once, and checked faster than a chosen one.",
    ),
]
Name = Annotated[str, typer.Argument(help="The user name that the client sends.")]


@app.command("add")
def add(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="The user name that the client sends.")
    ],
    *,
    client_type: TypeOfUser = TypeOption.DEVICE,
    generate: Generate = False,
    scram: WithScram = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Add an account. The password is asked for, or read as one line from standard input.

    With --generate it is made, for several names at once too: a line with name, tab and password for each.
    """
    from embermq.app.accounts import accounts_of, check_name

    for name in names:
        check_name(name)
    if len(names) > 1 and not generate:
        raise OptionError(f"{len(names)} names: only --generate adds more than one account at a time")
    settings = _settings(data_dir, config, assignments)
    password = None if generate else _read_password()
    is_new = settings.stores.static == SQLITE and not Path(settings.data_dir).exists()
    kind, iterations = ClientType[client_type.name], settings.scram.iterations if scram else None
    about = {"name": ", ".join(names), "type": client_type.value, "scram": scram}
    with _recorded(settings, "AddAccount", about), accounts_of(settings, create=True) as accounts:
        if password is None:
            for name, made in accounts.add_generated(names, kind, scram_iterations=iterations):
                print(f"{name}\t{made}")
        else:
            accounts.add(names[0], password, kind, scram_iterations=iterations)
            print(f"added {names[0]} ({client_type.value}{', scram' if scram else ''})")
    if is_new:
        say_made(Path(settings.data_dir))


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

    with accounts_of(_settings(data_dir, config, assignments)) as accounts:
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
    cells = [
        (
            shown(str(row["name"])),
            str(row["type"]),
            "disabled" if row["disabled"] else "enabled",
            "yes" if row["scram"] else "no",
            str(row["created"]),
        )
        for row in rows
    ]
    for line in table([("user", "type", "state", "scram", "created"), *cells], names=5):
        print(line.rstrip())


@app.command("remove")
def remove(
    name: Name, *, data_dir: DataDir = None, config: ConfigFile = None, assignments: Assignments = None
) -> None:
    """Remove an account. A running broker ends the connections that were opened with it."""
    from embermq.app.accounts import accounts_of

    settings = _settings(data_dir, config, assignments)
    with _recorded(settings, "RemoveAccount", {"user": name}), accounts_of(settings) as accounts:
        accounts.remove(name)
    print(f"removed {name}")


@app.command("password")
def password(
    name: Name,
    *,
    generate: Generate = False,
    scram: WithScram = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Change a password. A running broker ends the connections that were opened with the old one.

    The password is asked for, or read as one line from standard input; with --generate it is made and shown.
    """
    from embermq.app.accounts import accounts_of

    settings = _settings(data_dir, config, assignments)
    with accounts_of(settings) as accounts:
        accounts.find(name)
        given = None if generate else _read_password()
        with _recorded(settings, "SetPassword", {"user": name}):
            iterations = settings.scram.iterations
            made = accounts.set_password(name, given, scram_iterations=iterations, scram=scram)
    print(f"{name}\t{made}" if made else f"changed the password of {name}")


@app.command("disable")
def disable(
    name: Name, *, data_dir: DataDir = None, config: ConfigFile = None, assignments: Assignments = None
) -> None:
    """Keep an account, but refuse its logins. A running broker ends its connections."""
    from embermq.app.accounts import accounts_of

    settings = _settings(data_dir, config, assignments)
    with _recorded(settings, "DisableAccount", {"user": name}), accounts_of(settings) as accounts:
        accounts.set_disabled(name, disabled=True)
    print(f"disabled {name}")


@app.command("enable")
def enable(
    name: Name, *, data_dir: DataDir = None, config: ConfigFile = None, assignments: Assignments = None
) -> None:
    """Enable a disabled account."""
    from embermq.app.accounts import accounts_of

    settings = _settings(data_dir, config, assignments)
    with _recorded(settings, "EnableAccount", {"user": name}), accounts_of(settings) as accounts:
        accounts.set_disabled(name, disabled=False)
    print(f"enabled {name}")


@app.command("import")
def import_file(
    file: Annotated[
        Path, typer.Argument(help="A password file of Mosquitto, as mosquitto_passwd writes it.")
    ],
    *,
    client_type: TypeOfUser = TypeOption.DEVICE,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Overwrite accounts whose names are taken, instead of keeping them."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, change nothing.")
    ] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Import a Mosquitto password file. All of its users are taken, or none; they keep their passwords."""
    from msgspec.structs import asdict

    from embermq.app.accounts import accounts_of

    settings = _settings(data_dir, config, assignments)
    about = {"file": str(file), "replace": replace}
    recorded = nullcontext() if dry_run else _recorded(settings, "ImportAccounts", about)
    with recorded, accounts_of(settings, create=not dry_run) as accounts:
        done = accounts.import_file(
            file, ClientType[client_type.name], replace_existing=replace, dry_run=dry_run
        )
    if as_json:
        print(json.dumps({**asdict(done), "dry_run": dry_run}, indent=2))
        return
    would = "would be " if dry_run else ""
    print(
        f"{done.users} users in {file}: {would}added {done.added}, replaced {done.replaced}, kept {done.kept}"
    )


@app.command("copy")
def copy(
    *,
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="STORE", help="sqlite for the data directory, or the URL of a database."
        ),
    ],
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Overwrite accounts whose names are taken, instead of keeping them."),
    ] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Copy the accounts of another store. They go, all or none, into the one that stores.static names."""
    from msgspec.structs import asdict

    from embermq.app.accounts import accounts_of

    settings = configuration(config, assignments, data_dir).settings
    there = configuration(config, [*(assignments or ()), f"stores.static={source}"], data_dir).settings
    if there.stores == settings.stores:
        raise OptionError("--from names the store that stores.static names; nothing was copied")
    with accounts_of(there) as accounts:
        users = accounts.all()
    about = {"from": without_password(source), "replace": replace}
    with _recorded(settings, "CopyAccounts", about), accounts_of(settings, create=True) as accounts:
        done = accounts.import_users(users, replace_existing=replace)
    if as_json:
        print(json.dumps(asdict(done), indent=2))
        return
    print(f"{done.users} users: added {done.added}, replaced {done.replaced}, kept {done.kept}")


def _settings(data_dir: str | None, config: Path | None, assignments: list[str] | None) -> Settings:
    """Those of the options; whoever forgot them would change accounts that no broker reads."""
    from embermq.app.places_noted import GIVE, static_elsewhere

    settings = configuration(config, assignments, data_dir).settings
    if elsewhere := static_elsewhere(settings):
        told = f"these are accounts in {settings.data_dir}, whose broker has its own in {elsewhere}"
        print(f"{told}: to reach those {GIVE}", file=sys.stderr)
    return settings


def _recorded(
    settings: Settings, operation: str, about: Mapping[str, object]
) -> AbstractContextManager[None]:
    """Have it in the audit trail of the data directory."""
    from embermq.app.audit_trail import command_recorded

    return command_recorded(Path(settings.data_dir), operation, about)


def _read_password() -> bytes:
    if not sys.stdin.isatty():
        return sys.stdin.buffer.readline(128 * 1024).rstrip(b"\r\n")
    password = getpass("Password: ")
    if getpass("The same again: ") != password:
        raise UserError("the two passwords differ; nothing was changed")
    return password.encode(errors="surrogateescape")
