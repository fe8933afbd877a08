"""`embermq users`: the accounts that clients enter with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from getpass import getpass
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from embermq.admin import access_operations as ops
from embermq.admin.access_values import AccountView, MadePassword
from embermq.app.config import Settings
from embermq.app.control import ControlClient
from embermq.app.errors import OptionError, UserError
from embermq.app.settings import check_settings as check_stores
from embermq.cli.control import broker_command
from embermq.cli.options import with_settings
from embermq.cli.terminal import Told, group, shown, table
from embermq.model.amounts import counted
from embermq.model.client_type import ClientType
from embermq.ports.store_url import without_password

app = group("Accounts: add, list, change, remove, import.")


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
Replace = Annotated[
    bool, typer.Option("--replace", help="Overwrite accounts whose names are taken, instead of keeping them.")
]
Name = Annotated[str, typer.Argument(help="The user name that the client sends.")]


def _here(settings: Settings) -> ControlClient:
    """Accounts need no running broker."""
    from embermq.app.directory_client import accounts_here

    _note_elsewhere(settings)
    return accounts_here(settings)


@broker_command(app, "add", here=_here)
def add(
    broker: ControlClient,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="The user name that the client sends.")
    ],
    *,
    client_type: TypeOfUser = TypeOption.DEVICE,
    generate: Generate = False,
    scram: WithScram = False,
) -> None:
    """Add an account. The password is asked for, or read as one line from standard input.

    With --generate it is made, for several names at once too: a line with name, tab and password for each.
    """
    _check_new(broker, names, generate=generate)
    password = "" if generate else _read_password()
    for name in names:
        made = broker.ask(ops.ADD_ACCOUNT, name=name, type=client_type.value, scram=scram, password=password)
        _tell_made(made, f"added {name} ({client_type.value}{', scram' if scram else ''})")


def _check_new(broker: ControlClient, names: list[str], *, generate: bool) -> None:
    """Before any is added. Raises OptionError, UserError."""
    from embermq.app.accounts import check_name

    for name in names:
        check_name(name)
    if len(names) == 1:
        return
    if not generate:
        raise OptionError(f"{len(names)} names: only --generate adds more than one account at a time")
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UserError(f"the user {name!r} is named twice; nobody was added")
    there = {one["name"] for one in broker.pages(ops.LIST_ACCOUNTS)}
    for name in names:
        if name in there:
            raise UserError(f"there is a user {name!r} already")


def _tell_made(answer: object, done: str) -> None:
    made = msgspec.convert(answer, MadePassword)
    print(done if made.password is msgspec.UNSET else f"{made.name}\t{made.password}")


@broker_command(app, "list", here=_here)
def list_all(broker: ControlClient) -> Told:
    """Show every account."""
    accounts = [msgspec.convert(one, AccountView) for one in broker.pages(ops.LIST_ACCOUNTS)]
    cells = [
        (
            shown(each.name),
            each.type,
            "disabled" if each.disabled else "enabled",
            "yes" if each.scram else "no",
            each.created,
        )
        for each in accounts
    ]
    return Told(accounts, table([("user", "type", "state", "scram", "created"), *cells], names=5))


@broker_command(app, "remove", here=_here)
def remove(broker: ControlClient, name: Name) -> list[str]:
    """Remove an account. A running broker ends the connections that were opened with it."""
    broker.ask(ops.REMOVE_ACCOUNT, user=name)
    return [f"removed {name}"]


@broker_command(app, "password", here=_here)
def password(
    broker: ControlClient, name: Name, *, generate: Generate = False, scram: WithScram = False
) -> None:
    """Change a password. A running broker ends the connections that were opened with the old one.

    The password is asked for, or read as one line from standard input; with --generate it is made and shown.
    """
    given = "" if generate else _read_password()
    made = broker.ask(ops.SET_PASSWORD, user=name, password=given, scram=scram)
    _tell_made(made, f"changed the password of {name}")


@broker_command(app, "disable", here=_here)
def disable(broker: ControlClient, name: Name) -> list[str]:
    """Keep an account, but refuse its logins. A running broker ends its connections."""
    broker.ask(ops.DISABLE_ACCOUNT, user=name)
    return [f"disabled {name}"]


@broker_command(app, "enable", here=_here)
def enable(broker: ControlClient, name: Name) -> list[str]:
    """Enable a disabled account."""
    broker.ask(ops.ENABLE_ACCOUNT, user=name)
    return [f"enabled {name}"]


@app.command("import")
@with_settings
def import_file(
    settings: Settings,
    file: Annotated[
        Path, typer.Argument(help="A password file of Mosquitto, as mosquitto_passwd writes it.")
    ],
    *,
    client_type: TypeOfUser = TypeOption.DEVICE,
    replace: Replace = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, change nothing.")
    ] = False,
) -> Told:
    """Import a Mosquitto password file. All of its users are taken, or none; they keep their passwords."""
    from msgspec.structs import asdict

    from embermq.app.accounts import accounts_of

    _note_elsewhere(settings)
    about = {"file": str(file), "replace": replace}
    recorded = nullcontext() if dry_run else _recorded(settings, "ImportAccounts", about)
    with recorded, accounts_of(settings, create=not dry_run) as accounts:
        done = accounts.import_file(
            file, ClientType[client_type.name], replace_existing=replace, dry_run=dry_run
        )
    would = "would be " if dry_run else ""
    told = f"{would}added {done.added}, replaced {done.replaced}, kept {done.kept}"
    return Told({**asdict(done), "dry_run": dry_run}, [f"{counted(done.users, 'user')} in {file}: {told}"])


@app.command("copy")
@with_settings
def copy(
    settings: Settings,
    *,
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="STORE", help="sqlite for the data directory, or the URL of a database."
        ),
    ],
    replace: Replace = False,
) -> Told:
    """Copy the accounts of another store. They go, all or none, into the one that stores.static names."""
    from msgspec.structs import asdict
    from msgspec.structs import replace as replaced

    from embermq.app.accounts import accounts_of

    there = replaced(settings, stores=replaced(settings.stores, static=source))
    try:
        check_stores(there.stores)
    except ValueError as error:
        raise OptionError(f"--from: {error}") from None
    if there.stores == settings.stores:
        raise OptionError("--from names the store that stores.static names; nothing was copied")
    with accounts_of(there) as accounts:
        users = accounts.all()
    about = {"from": without_password(source), "replace": replace}
    with _recorded(settings, "CopyAccounts", about), accounts_of(settings, create=True) as accounts:
        done = accounts.import_users(users, replace_existing=replace)
    told = f"{counted(done.users, 'user')}: added {done.added}, replaced {done.replaced}, kept {done.kept}"
    return Told(asdict(done), [told])


def _note_elsewhere(settings: Settings) -> None:
    """Whoever forgot an option would change accounts that no broker reads."""
    from embermq.app.places_noted import GIVE, static_elsewhere

    if elsewhere := static_elsewhere(settings):
        told = f"these are accounts in {settings.data_dir}, whose broker has its own in {elsewhere}"
        print(f"{told}: to reach those {GIVE}", file=sys.stderr)


def _recorded(
    settings: Settings, operation: str, about: Mapping[str, object]
) -> AbstractContextManager[None]:
    """Have it in the audit trail of the data directory."""
    from embermq.app.audit_trail import command_recorded

    return command_recorded(Path(settings.data_dir), operation, about)


def _read_password() -> str:
    """Bytes that are no UTF-8 as surrogates. Raises UserError."""
    if sys.stdin.isatty():
        password = getpass("Password: ")
        if getpass("The same again: ") != password:
            raise UserError("the two passwords differ; nothing was changed")
    else:
        line = sys.stdin.buffer.readline(128 * 1024).rstrip(b"\r\n")
        password = line.decode(errors="surrogateescape")
    if not password:  # which would have one made
        raise UserError("the password is empty")
    return password
