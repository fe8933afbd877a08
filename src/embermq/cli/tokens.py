"""`embermq tokens`: what other machines and programs use the API with."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.admin import access_operations as ops
from embermq.admin.access import Scope
from embermq.admin.access_values import MadeToken, TokenView
from embermq.app.config import Settings
from embermq.app.control import ControlClient
from embermq.app.errors import OptionError, UserError
from embermq.cli.control import broker_command
from embermq.cli.terminal import Told, group, say_made, shown, table
from embermq.model.moments import iso_s

if TYPE_CHECKING:
    from embermq.app.api_tokens import TokenFile

app = group("Tokens of the API: create, list, revoke.")


Name = Annotated[str, typer.Argument(help="A name for the token.")]


def _create_elsewhere(
    broker: ControlClient, name: str, scope: Scope, expires: str, certificate: str
) -> list[str]:
    asked = {"name": name, "scope": scope.value, "expires": expires, "certificate": certificate}
    made = msgspec.convert(broker.ask(ops.CREATE_TOKEN, **asked), MadeToken)
    return [_made(made.token, certificate, scope)]


@broker_command(app, "create", _create_elsewhere)
def create(
    settings: Settings,
    name: Name,
    *,
    scope: Annotated[
        Scope,
        typer.Option(
            "--scope",
            help="read; operate: purge and retry too; admin: configure and delete too; rules: read, write rules.",
        ),
    ] = Scope.READ,
    expires: Annotated[
        str,
        typer.Option(
            "--expires", metavar="DURATION", help="How long it is valid, such as 12h or 30d; else for ever."
        ),
    ] = "",
    certificate: Annotated[
        str,
        typer.Option(
            "--certificate",
            metavar="NAME",
            help="Make none: clients whose certificate proves this name need none (listeners https and grpcs).",
        ),
    ] = "",
) -> None:
    """Make a token and print it, this once: only its hash is stored. From the first token on the API asks everybody for
    one, also programs on this machine; the embermq command needs none."""
    from embermq.app.api_tokens import TokenFile, expires_ms_of
    from embermq.app.audit_trail import command_recorded

    try:
        expires_ms = expires_ms_of(expires, time.time_ns() // 1_000_000)
    except OptionError as error:
        raise OptionError(f"--{error}") from None
    directory = Path(settings.data_dir)
    is_new = not directory.exists()
    about = {"name": name, "scope": scope.value, "expires": expires, "certificate": certificate}
    with command_recorded(directory, "CreateToken", {key: value for key, value in about.items() if value}):
        secret = TokenFile(directory).create(name, scope, expires_ms, certificate)
    print(_made(secret, certificate, scope))
    if is_new:
        say_made(directory)


def _made(secret: str, certificate: str, scope: Scope) -> str:
    return secret or f"clients with the certificate name {shown(certificate)} may {scope.value}"


def _list_elsewhere(broker: ControlClient) -> Told:
    return _listed(msgspec.convert(broker.ask(ops.LIST_TOKENS), list[TokenView]))


@broker_command(app, "list", _list_elsewhere)
def list_all(settings: Settings) -> Told:
    """Show every token by name, without its secret."""
    tokens, _ = _tokens(settings)
    return _listed(
        [
            TokenView(
                name=token.name,
                scope=token.scope.value,
                created=iso_s(token.created_ms),
                expires=iso_s(token.expires_ms) if token.expires_ms else None,
                certificate=token.certificate,
            )
            for _, token in sorted(tokens.all().items())
        ]
    )


def _listed(tokens: list[TokenView]) -> Told:
    cells = [
        tuple(
            shown(value or "-")
            for value in (one.name, one.scope, one.created, one.expires or "never", one.certificate)
        )
        for one in tokens
    ]
    return Told(tokens, table([("name", "scope", "created", "expires", "certificate"), *cells], names=5))


def _revoke_elsewhere(broker: ControlClient, name: str) -> list[str]:
    broker.ask(ops.REVOKE_TOKEN, token=name)
    return [f"revoked {name}"]


@broker_command(app, "revoke", _revoke_elsewhere)
def revoke(settings: Settings, name: Name) -> None:
    """Revoke a token. A running broker refuses it from the next request on."""
    from embermq.app.audit_trail import command_recorded

    tokens, directory = _tokens(settings)
    with command_recorded(directory, "RevokeToken", {"token": name}):
        tokens.revoke(name)
    print(f"revoked {name}")
    if not tokens.all():
        print("no token is left: programs on this machine may use the API without one again", file=sys.stderr)


def _tokens(settings: Settings) -> tuple[TokenFile, Path]:
    """Those of a data directory that is there: an empty list of another one would say that nobody needs a token."""
    from embermq.app.api_tokens import TokenFile

    directory = Path(settings.data_dir)
    if not directory.is_dir():
        raise UserError(f"there is no data directory {directory}; name it with --data-dir")
    return TokenFile(directory), directory
