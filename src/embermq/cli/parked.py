"""`embermq sessions parked`: messages that applications did not acknowledge, however often they were sent."""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from embermq.admin import operations as ops
from embermq.app.control import ControlClient
from embermq.app.errors import OptionError
from embermq.cli.control import broker_command
from embermq.cli.options import Yes
from embermq.cli.terminal import Told, confirm, group, shown, table
from embermq.model.amounts import counted

app = group("Parked messages of applications: list, show, redrive, delete.")

ClientId = Annotated[str, typer.Argument(help="The client's id.")]
Number = Annotated[int, typer.Argument(min=1, help="The message's number, as list shows it.")]
Numbers = Annotated[list[int] | None, typer.Argument(min=1, help="Their numbers, as list shows them.")]
All = Annotated[bool, typer.Option("--all", help="All parked messages of the client.")]


OneClient = Annotated[
    str | None,
    typer.Argument(help="A client, to see its messages; without it, the clients that have any."),
]
Raw = Annotated[bool, typer.Option("--raw", help="Print the payload alone, as it came.")]
HEADINGS = ("topic", "state", "parked", "number", "QoS", "bytes")


@broker_command(app, "list")
def list_all(broker: ControlClient, client_id: OneClient = None) -> Told:
    """Show clients with parked messages. With a client id, show its messages."""
    if client_id is not None:
        found = list(broker.pages(ops.LIST_PARKED, client_id=client_id))
        return Told(found, table([HEADINGS, *map(_cells, found)], names=3))
    found = broker.ask(ops.LIST_PARKED_CLIENTS)
    rows = [(shown(one["client_id"]), f"{one['messages']:,}", f"{one['parked']:,}") for one in found]
    return Told(found, table([("client id", "messages", "parked"), *rows], names=1))


@broker_command(app, "show")
def show(broker: ControlClient, client_id: ClientId, number: Number, *, raw: Raw = False) -> Told:
    """Show one parked message with its payload."""
    found = broker.ask(ops.GET_PARKED, client_id=client_id, number=number)
    if raw:
        sys.stdout.buffer.write(_payload(found))
        raise typer.Exit
    return Told(found, _detail(found))


def _detail(found: dict[str, Any]) -> Iterator[str]:
    told = {**found["about"], **{name: found[name] for name in ("publisher", "accepted", "expires")}}
    for name, value in {**told, **found["properties"]}.items():
        yield f"{name.replace('_', ' '):<16} {'-' if value in (None, '') else shown(str(value))}"
    if "payload" in found:
        yield f"{'payload':<16} {shown(found['payload'])}"
    elif "payload_base64" in found:
        yield f"{'payload':<16} 0x{_payload(found).hex()}"


@broker_command(app, "redrive")
def redrive(
    broker: ControlClient, client_id: ClientId, numbers: Numbers = None, *, everything: All = False
) -> list[str]:
    """Have parked messages sent again. They are sent at once when the client is there, else when it comes. An MQTT 5
    client to which they were sent on its present connection is disconnected, so that it reconnects."""
    chosen = _chosen(numbers, everything)
    done = broker.ask(ops.REDRIVE_PARKED, client_id=client_id, number=chosen)
    return _counted("redriven", done["messages"], chosen)


@broker_command(app, "delete")
def delete(
    broker: ControlClient,
    client_id: ClientId,
    numbers: Numbers = None,
    *,
    everything: All = False,
    yes: Yes = False,
) -> list[str]:
    """Delete parked messages for good."""
    chosen = _chosen(numbers, everything)
    said = "all parked messages" if everything else f"{len(chosen)} parked messages"
    confirm(f"{said} of {shown(client_id)} go", yes=yes)
    done = broker.ask(ops.DELETE_PARKED, client_id=client_id, number=chosen)
    return _counted("deleted", done["messages"], chosen)


def _chosen(numbers: list[int] | None, everything: bool) -> list[int]:
    """Empty for all. One of the two has to be said."""
    if bool(numbers) == everything:
        raise OptionError("say either the numbers of messages, as list shows them, or --all")
    return sorted(set(numbers or ()))


def _counted(done: str, count: int, chosen: list[int]) -> list[str]:
    if len(chosen) > count:
        print(f"{len(chosen) - count:,} are not parked, or are being sent again", file=sys.stderr)
    return [f"{done} {counted(count, 'message')}"]


def _cells(message: dict[str, Any]) -> tuple[str, ...]:
    return (
        shown(message["topic"]),
        f"{message['state']}, received" if message["received"] else message["state"],
        message["parked"],
        f"{message['number']}",
        f"{message['qos']}",
        f"{message['payload_bytes']:,}",
    )


def _payload(found: dict[str, Any]) -> bytes:
    if "payload_base64" in found:
        return b64decode(found["payload_base64"])
    payload: str = found.get("payload", "")
    return payload.encode()
