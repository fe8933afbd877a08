"""`embermq bans`: who may not come in."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from embermq.access.bans import BanKind
from embermq.admin import access_operations as ops
from embermq.admin.values import BanAsked, BanPut, BanView
from embermq.app.control import ControlClient
from embermq.cli.control import broker_command
from embermq.cli.terminal import Told, group, shown, table

app = group("Bans of client ids, users and addresses.")


Kind = Annotated[BanKind, typer.Argument(help="What is banned.")]
Value = Annotated[str, typer.Argument(help="The client id, the user, or an address or network.")]
Lasts = Annotated[
    str,
    typer.Option("--for", metavar="DURATION", help="How long, such as 15m or 30d; else until it is lifted."),
]
EvenOwn = Annotated[
    bool, typer.Option("--even-own", help="With --url: also what has the address of this machine.")
]
Reason = Annotated[str, typer.Option("--reason", help="Why, for those who look at the list.")]


@broker_command(app, "list")
def list_all(broker: ControlClient) -> Told:
    """Show bans by kind and value."""
    found = [msgspec.convert(one, BanView) for one in broker.pages(ops.LIST_BANS)]
    rows = [
        (one.kind, shown(one.value), one.since, one.until or "it is lifted", shown(one.reason))
        for one in found
    ]
    return Told(found, table([("kind", "value", "since", "until", "reason"), *rows], names=5))


@broker_command(app, "add")
def add(
    broker: ControlClient,
    kind: Kind,
    value: Value,
    *,
    lasts: Lasts = "",
    reason: Reason = "",
    even_own: EvenOwn = False,
) -> list[str]:
    """Ban a client id, a user or an address. Clients that are connected are sent away; their sessions stay."""
    asked = msgspec.to_builtins(BanAsked(lasts=lasts, reason=reason, even_own=even_own))
    put = msgspec.convert(broker.ask(ops.PUT_BAN, kind=kind.value, value=value, **asked), BanPut)
    return [f"banned the {put.ban.kind} {shown(put.ban.value)}; sent away: {put.disconnected}"]


@broker_command(app, "remove")
def remove(broker: ControlClient, kind: Kind, value: Value) -> list[str]:
    """Lift a ban."""
    broker.ask(ops.LIFT_BAN, kind=kind.value, value=value)
    return [f"lifted the ban of the {kind.value} {shown(value)}"]
