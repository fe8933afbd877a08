"""`embermq sessions parked`: messages that applications did not acknowledge, however often they were sent."""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import UNSET

from embermq.app.errors import OptionError
from embermq.cli.control import running_broker
from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, Yes
from embermq.cli.terminal import confirm, print_json, shown, table

if TYPE_CHECKING:
    from embermq.admin.parked_values import ParkedDetail, ParkedView
    from embermq.app.control import ControlClient

PATH = "/api/v1/parked"

app = typer.Typer(
    help="Parked messages of applications: list, show, redrive, delete.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ClientId = Annotated[str, typer.Argument(help="The client's id.")]
Number = Annotated[int, typer.Argument(min=1, help="The message's number, as list shows it.")]
Numbers = Annotated[list[int] | None, typer.Argument(min=1, help="Their numbers, as list shows them.")]
All = Annotated[bool, typer.Option("--all", help="All parked messages of the client.")]


@app.command("list")
def list_all(
    client_id: Annotated[
        str | None,
        typer.Argument(help="A client, to see its messages; without it, the clients that have any."),
    ] = None,
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show who has parked messages. With a client id, show its messages."""
    from embermq.admin.parked_values import ParkedClientView

    with running_broker(data_dir, config, assignments) as broker:
        if client_id is None:
            clients = msgspec.json.decode(broker.ask("GET", f"{PATH}/clients"), type=list[ParkedClientView])
            found: object = clients
            rows = [(shown(one.client_id), f"{one.messages:,}", f"{one.parked:,}") for one in clients]
            lines = table([("client id", "messages", "parked"), *rows], names=1)
        else:
            messages = list(_all(broker, client_id))
            found = messages
            lines = table(
                [("topic", "state", "parked", "number", "QoS", "bytes"), *map(_cells, messages)], names=3
            )
    if as_json:
        print_json(found)
        return
    for line in lines:
        print(line)


@app.command("show")
def show(
    client_id: ClientId,
    number: Number,
    *,
    raw: Annotated[bool, typer.Option("--raw", help="Print the payload alone, as it came.")] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show one parked message with its payload."""
    from embermq.admin.parked_values import ParkedDetail

    with running_broker(data_dir, config, assignments) as broker:
        body = broker.ask("GET", f"{PATH}/message", client_id=client_id, number=str(number))
    found = msgspec.json.decode(body, type=ParkedDetail)
    if raw:
        sys.stdout.buffer.write(_payload(found))
        return
    if as_json:
        print_json(body)
        return
    about = msgspec.structs.asdict(found.about)
    told = {**about, "publisher": found.publisher, "accepted": found.accepted, "expires": found.expires}
    for name, value in {**told, **found.properties}.items():
        print(f"{name.replace('_', ' '):<16} {'-' if value in (None, '') else shown(str(value))}")
    if found.payload is not UNSET:
        print(f"{'payload':<16} {shown(found.payload)}")
    elif found.payload_base64 is not UNSET:
        print(f"{'payload':<16} 0x{_payload(found).hex()}")


@app.command("redrive")
def redrive(
    client_id: ClientId,
    numbers: Numbers = None,
    *,
    everything: All = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Have parked messages sent again. They are sent at once when the client is there, else when it comes. An MQTT 5
    client to which they were sent on its present connection is disconnected, so that it comes again."""
    chosen = _chosen(numbers, everything)
    with running_broker(data_dir, config, assignments) as broker:
        body = broker.ask("POST", f"{PATH}/redrive", client_id=client_id, number=chosen)
    _tell("redriven", body, chosen)


@app.command("delete")
def delete(
    client_id: ClientId,
    numbers: Numbers = None,
    *,
    everything: All = False,
    yes: Yes = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Delete parked messages for good."""
    chosen = _chosen(numbers, everything)
    said = "all parked messages" if everything else f"{len(chosen)} parked messages"
    confirm(f"{said} of {shown(client_id)} go", yes=yes)
    with running_broker(data_dir, config, assignments) as broker:
        body = broker.ask("DELETE", PATH, client_id=client_id, number=chosen)
    _tell("deleted", body, chosen)


def _chosen(numbers: list[int] | None, everything: bool) -> list[str]:
    """Empty for all. One of the two has to be said."""
    if bool(numbers) == everything:
        raise OptionError("say either the numbers of messages, as list shows them, or --all")
    return [str(number) for number in sorted(set(numbers or ()))]


def _tell(done: str, body: bytes, chosen: list[str]) -> None:
    from embermq.admin.parked_values import ParkedCount

    count = msgspec.json.decode(body, type=ParkedCount).messages
    print(f"{done} {count:,} messages")
    if len(chosen) > count:
        print(f"{len(chosen) - count:,} are not parked, or are being sent again", file=sys.stderr)


def _all(broker: ControlClient, client_id: str) -> Iterator[ParkedView]:
    """Page by page."""
    from embermq.admin.parked_values import ParkedView

    after = 0
    while page := msgspec.json.decode(
        broker.ask("GET", PATH, client_id=client_id, after=str(after)), type=list[ParkedView]
    ):
        yield from page
        after = page[-1].number


def _cells(message: ParkedView) -> tuple[str, ...]:
    state = f"{message.state}, received" if message.received else message.state
    return (
        shown(message.topic),
        state,
        message.parked,
        f"{message.number}",
        f"{message.qos}",
        f"{message.payload_bytes:,}",
    )


def _payload(found: ParkedDetail) -> bytes:
    if found.payload_base64 is not UNSET:
        return b64decode(found.payload_base64)
    return b"" if found.payload is UNSET else found.payload.encode()
