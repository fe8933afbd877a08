"""`embermq users`: the accounts that clients enter with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer

from embermq.admin.access_values import AccountView
from embermq.app.config import Settings
from embermq.app.control import ControlClient
from embermq.app.errors import OptionError, UserError
from embermq.app.settings import SQLITE
from embermq.app.settings import check_settings as check_stores
from embermq.cli import users_elsewhere as elsewhere
from embermq.cli.control import broker_command
from embermq.cli.options import with_settings
from embermq.cli.terminal import Told, group, say_made, shown, table
from embermq.model.amounts import counted
from embermq.model.client_type import ClientType
from embermq.model.moments import iso_s
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
SEVERAL = "{} names: only --generate adds more than one account at a time"
Name = Annotated[str, typer.Argument(help="The user name that the client sends.")]


def _add_elsewhere(
    broker: ControlClient, names: list[str], client_type: TypeOption, *, generate: bool, scram: bool
) -> list[str]:
    if len(names) > 1 and not generate:
        raise OptionError(SEVERAL.format(len(names)))
    return elsewhere.add(broker, names, client_type.value, None if generate else _read_password, scram=scram)


@broker_command(app, "add", _add_elsewhere)
def add(
    settings: Settings,
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
    from embermq.app.accounts import accounts_of, check_name

    for name in names:
        check_name(name)
    if len(names) > 1 and not generate:
        raise OptionError(SEVERAL.format(len(names)))
    _note_elsewhere(settings)
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


@broker_command(app, "list", lambda broker: _listed(elsewhere.all_accounts(broker)))
def list_all(settings: Settings) -> Told:
    """Show every account."""
    from embermq.app.accounts import accounts_of

    _note_elsewhere(settings)
    with accounts_of(settings) as accounts:
        users = accounts.all()
    return _listed(
        [
            AccountView(
                name=user.name,
                type=user.client_type.name.lower(),
                disabled=user.disabled,
                scram=bool(user.scram),
                created=iso_s(user.created_ms),
            )
            for user in users
        ]
    )


def _listed(accounts: list[AccountView]) -> Told:
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


@broker_command(app, "remove", elsewhere.remove)
def remove(settings: Settings, name: Name) -> None:
    """Remove an account. A running broker ends the connections that were opened with it."""
    from embermq.app.accounts import accounts_of

    _note_elsewhere(settings)
    with _recorded(settings, "RemoveAccount", {"user": name}), accounts_of(settings) as accounts:
        accounts.remove(name)
    print(f"removed {name}")


def _password_elsewhere(broker: ControlClient, name: str, *, generate: bool, scram: bool) -> list[str]:
    return elsewhere.set_password(broker, name, None if generate else _read_password, scram=scram)


@broker_command(app, "password", _password_elsewhere)
def password(settings: Settings, name: Name, *, generate: Generate = False, scram: WithScram = False) -> None:
    """Change a password. A running broker ends the connections that were opened with the old one.

    The password is asked for, or read as one line from standard input; with --generate it is made and shown.
    """
    from embermq.app.accounts import accounts_of

    _note_elsewhere(settings)
    with accounts_of(settings) as accounts:
        accounts.find(name)
        given = None if generate else _read_password()
        with _recorded(settings, "SetPassword", {"user": name}):
            iterations = settings.scram.iterations
            made = accounts.set_password(name, given, scram_iterations=iterations, scram=scram)
    print(f"{name}\t{made}" if made else f"changed the password of {name}")


@broker_command(app, "disable", elsewhere.disable)
def disable(settings: Settings, name: Name) -> None:
    """Keep an account, but refuse its logins. A running broker ends its connections."""
    from embermq.app.accounts import accounts_of

    _note_elsewhere(settings)
    with _recorded(settings, "DisableAccount", {"user": name}), accounts_of(settings) as accounts:
        accounts.set_disabled(name, disabled=True)
    print(f"disabled {name}")


@broker_command(app, "enable", elsewhere.enable)
def enable(settings: Settings, name: Name) -> None:
    """Enable a disabled account."""
    from embermq.app.accounts import accounts_of

    _note_elsewhere(settings)
    with _recorded(settings, "EnableAccount", {"user": name}), accounts_of(settings) as accounts:
        accounts.set_disabled(name, disabled=False)
    print(f"enabled {name}")


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


def _read_password() -> bytes:
    if not sys.stdin.isatty():
        return sys.stdin.buffer.readline(128 * 1024).rstrip(b"\r\n")
    password = getpass("Password: ")
    if getpass("The same again: ") != password:
        raise UserError("the two passwords differ; nothing was changed")
    return password.encode(errors="surrogateescape")
