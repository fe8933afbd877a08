"""`embermq sessions`: what a running broker holds for its clients."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, configuration
from embermq.cli.terminal import shown, table

if TYPE_CHECKING:
    from embermq.admin.session_service import SessionView
    from embermq.app.control import ControlClient

HEADINGS = ("client id", "type", "state", "subscribed", "queued", "in flight", "behind")
NAMES = 3

app = typer.Typer(
    help="Sessions: list, show, disconnect, delete, pins.", no_args_is_help=True, rich_markup_mode=None
)

ClientId = Annotated[str, typer.Argument(help="The client's id.")]


@app.command("list")
def list_all(
    *,
    match: Annotated[
        str, typer.Option("--match", metavar="PATTERN", help="Shell wildcards over client ids.")
    ] = "*",
    connected: Annotated[
        bool | None, typer.Option("--connected/--away", help="Only clients that are here, or that are not.")
    ] = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show sessions, by client id: what is subscribed, stored, sent and not acknowledged."""
    with _broker(data_dir, config, assignments) as broker:
        found = [
            session
            for session in _all(broker)
            if fnmatchcase(session.client_id, match) and connected in (None, session.connected)
        ]
    if as_json:
        _print_json(found)
        return
    for line in table([HEADINGS, *map(_cells, found)], names=NAMES):
        print(line)


@app.command("show")
def show(
    client_id: ClientId,
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show one session with its subscriptions."""
    from embermq.admin.session_service import SessionDetail

    with _broker(data_dir, config, assignments) as broker:
        body = broker.ask("GET", "/api/v1/session", client_id=client_id)
    found = msgspec.json.decode(body, type=SessionDetail)
    if as_json:
        _print_json(found)
        return
    for name, value in msgspec.structs.asdict(found.session).items():
        print(f"{name:<18} {_word(value)}")
    for one in found.subscriptions:
        options = [f"QoS {one.qos}"]
        options += [
            word
            for word, on in (("no local", one.no_local), ("retain as published", one.retain_as_published))
            if on
        ]
        options += [f"identifier {one.identifier}"] if one.identifier else []
        print(f"  {shown(one.topic_filter)}  ({', '.join(options)})")


@app.command("disconnect")
def disconnect(
    client_id: ClientId,
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """End a client's connection; a kept session stays, and the client may come again."""
    with _broker(data_dir, config, assignments) as broker:
        broker.ask("POST", "/api/v1/session/disconnect", client_id=client_id)
    print(f"disconnected {shown(client_id)}")


@app.command("delete")
def delete(
    client_id: ClientId,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """End a session: its connection, its subscriptions, and every message that is stored for it."""
    from embermq.admin.session_service import SessionDetail

    with _broker(data_dir, config, assignments) as broker:
        if not yes and sys.stdin.isatty():
            body = broker.ask("GET", "/api/v1/session", client_id=client_id)
            session = msgspec.json.decode(body, type=SessionDetail).session
            stored, filters = session.queued, session.subscriptions
            typer.confirm(
                f"{shown(client_id)}: {stored} stored messages and {filters} subscriptions go; sure?",
                abort=True,
                err=True,
            )
        broker.ask("DELETE", "/api/v1/session", client_id=client_id)
    print(f"deleted {shown(client_id)}")


@app.command("pins")
def pins(
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show who reads the message log, furthest behind first: nothing leaves the log before they have it."""
    from embermq.admin.session_service import PinView

    with _broker(data_dir, config, assignments) as broker:
        found = msgspec.json.decode(broker.ask("GET", "/api/v1/pins"), type=list[PinView])
    if as_json:
        _print_json(found)
        return
    rows = [(shown(pin.reader), f"{pin.next_offset:,}", f"{pin.behind:,}") for pin in found]
    for line in table([("reader", "position", "behind"), *rows], names=1):
        print(line)


def _broker(data_dir: str | None, config: Path | None, assignments: list[str] | None) -> ControlClient:
    from embermq.app.control import ControlClient

    return ControlClient(Path(configuration(config, assignments, data_dir).settings.data_dir))


def _all(broker: ControlClient) -> Iterator[SessionView]:
    """Page by page, so that a broker with very many is not held up."""
    from embermq.admin.session_service import SessionView

    after = ""
    while page := msgspec.json.decode(
        broker.ask("GET", "/api/v1/sessions", after=after), type=list[SessionView]
    ):
        yield from page
        after = page[-1].client_id


def _cells(session: SessionView) -> tuple[str, ...]:
    state = "here" if session.connected else "away"
    return (
        shown(session.client_id),
        session.type,
        state if session.kept else f"{state}, not kept",
        f"{session.subscriptions:,}",
        f"{session.queued:,}",
        f"{session.in_flight:,}",
        "-" if session.behind is None else f"{session.behind:,}",
    )


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None or value == "" else shown(str(value))


def _print_json(found: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
