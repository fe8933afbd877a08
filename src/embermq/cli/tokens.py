"""`embermq tokens`: what other machines and programs use the API with."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from embermq.admin import access_operations as ops
from embermq.admin.access import Scope
from embermq.admin.access_values import MadeToken, TokenView
from embermq.app.config import Settings
from embermq.app.control import ControlClient
from embermq.app.errors import OptionError
from embermq.cli.control import broker_command
from embermq.cli.terminal import Told, group, shown, table

app = group("Tokens of the API: create, list, revoke.")


Name = Annotated[str, typer.Argument(help="A name for the token.")]


def _here(settings: Settings) -> ControlClient:
    """Tokens need no running broker."""
    from embermq.app.directory_client import tokens_here

    return tokens_here(settings)


@broker_command(app, "create", here=_here)
def create(
    broker: ControlClient,
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
) -> list[str]:
    """Make a token and print it, this once: only its hash is stored. From the first token on the API asks everybody for
    one, also programs on this machine; the embermq command needs none."""
    from embermq.app.api_tokens import expires_ms_of

    try:
        expires_ms_of(expires, 0)
    except OptionError as error:
        raise OptionError(f"--{error}") from None
    asked = {"name": name, "scope": scope.value, "expires": expires, "certificate": certificate}
    made = msgspec.convert(broker.ask(ops.CREATE_TOKEN, **asked), MadeToken)
    return [made.token or f"clients with the certificate name {shown(certificate)} may {scope.value}"]


@broker_command(app, "list", here=_here)
def list_all(broker: ControlClient) -> Told:
    """Show every token by name, without its secret."""
    tokens = msgspec.convert(broker.ask(ops.LIST_TOKENS), list[TokenView])
    cells = [
        tuple(
            shown(value or "-")
            for value in (one.name, one.scope, one.created, one.expires or "never", one.certificate)
        )
        for one in tokens
    ]
    return Told(tokens, table([("name", "scope", "created", "expires", "certificate"), *cells], names=5))


@broker_command(app, "revoke", here=_here)
def revoke(broker: ControlClient, name: Name) -> list[str]:
    """Revoke a token. A running broker refuses it from the next request on."""
    broker.ask(ops.REVOKE_TOKEN, token=name)
    if broker.is_this_process and not broker.ask(ops.LIST_TOKENS):
        print("no token is left: programs on this machine may use the API without one again", file=sys.stderr)
    return [f"revoked {name}"]
