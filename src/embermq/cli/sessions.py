"""`embermq sessions`: what a running broker holds for its clients."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated

import msgspec
import typer

from embermq.admin import operations as ops
from embermq.admin.session_values import (
    ApplicationLogView,
    PinView,
    SessionDetail,
    SessionView,
    SubscriptionView,
)
from embermq.app.control import ControlClient
from embermq.app.errors import UserError
from embermq.cli import parked
from embermq.cli.control import broker_command
from embermq.cli.options import Yes
from embermq.cli.terminal import Told, confirm, group, shown, table
from embermq.model.amounts import counted

HEADINGS = ("client id", "type", "state", "subscribed", "queued", "in flight", "behind")
NAMES = 3
NAMES_AT_ONCE = 20

app = group("Sessions of clients, and parked messages.")
app.add_typer(parked.app, name="parked")

ClientId = Annotated[str, typer.Argument(help="The client's id.")]


Match = Annotated[
    str,
    typer.Option("--match", metavar="PATTERN", help="Only client ids that fit; * ? [abc] are wildcards."),
]
Connected = Annotated[
    bool | None,
    typer.Option("--connected/--away", help="Only clients that are connected, or that are not."),
]
User = Annotated[str, typer.Argument(metavar="USER", help="The user to whom it belongs from now on.")]
Clean = Annotated[bool, typer.Option("--clean", help="Delete the logs without a reader.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what --clean would delete.")]


@broker_command(app, "list")
def list_all(broker: ControlClient, match: Match = "*", connected: Connected = None) -> Told:
    """Show sessions by client id. The columns count what is subscribed, stored, sent and not acknowledged."""
    asked = broker.pages(ops.LIST_CLIENTS, match=match, connected=connected)
    found = _with_logs(broker, [msgspec.convert(one, SessionView) for one in asked])
    return Told(found, table([HEADINGS, *map(_cells, found)], names=NAMES))


@broker_command(app, "show")
def show(broker: ControlClient, client_id: ClientId) -> Told:
    """Show one session, its subscriptions and what it owes. For each topic that is the oldest offset that is not
    acknowledged, and how many messages."""
    found = msgspec.convert(broker.ask(ops.GET_CLIENT, client_id=client_id), SessionDetail)
    subscriptions = broker.pages(ops.LIST_SUBSCRIPTIONS, client_id=client_id)
    found = msgspec.structs.replace(
        found,
        session=_with_logs(broker, [found.session])[0],
        subscriptions=[msgspec.convert(one, SubscriptionView) for one in subscriptions],
    )
    return Told(found, _detail(found))


def _detail(found: SessionDetail) -> Iterator[str]:
    for name, value in msgspec.structs.asdict(found.session).items():
        yield f"{name:<18} {_word(value)}"
    if found.connection is not None:
        yield "connection"
        for name, value in msgspec.structs.asdict(found.connection).items():
            yield f"  {name:<16} {_word(value)}"
    for queue in found.queues:
        yield f"  {shown(queue)}  (durable queue)"
    for one in found.subscriptions:
        options = [f"QoS {one.qos}"]
        options += [
            word
            for word, on in (("no local", one.no_local), ("retain as published", one.retain_as_published))
            if on
        ]
        options += [f"identifier {one.identifier}"] if one.identifier else []
        yield f"  {shown(one.topic_filter)}  ({', '.join(options)})"
    if found.unacknowledged:
        yield "not acknowledged, from"
    for part in found.unacknowledged:
        yield f"  {shown(part.topic)}  {part.partition}:{part.offset}  ({part.messages:,})"


@broker_command(app, "disconnect")
def disconnect(broker: ControlClient, client_id: ClientId) -> list[str]:
    """End a client's connection. A kept session stays, and the client may connect again."""
    broker.ask(ops.DISCONNECT_CLIENT, client_id=client_id)
    return [f"disconnected {shown(client_id)}"]


@broker_command(app, "give")
def give(broker: ControlClient, client_id: ClientId, user: User) -> list[str]:
    """Give a kept session to a user. A client of that user may then connect with its client id; nothing is lost."""
    broker.ask(ops.GIVE_SESSION, client_id=client_id, user=user)
    return [f"{shown(client_id)} belongs to {shown(user)}"]


@broker_command(app, "delete")
def delete(broker: ControlClient, client_id: ClientId, *, yes: Yes = False) -> list[str]:
    """End a session. Its connection, its subscriptions and every message that is stored for it go."""
    if not yes and sys.stdin.isatty():
        session = broker.ask(ops.GET_CLIENT, client_id=client_id)["session"]
        stored, filters = session["queued"], session["subscriptions"]
        confirm(
            f"{shown(client_id)}: {counted(stored, 'stored message')} and {counted(filters, 'subscription')} go",
            yes=False,
        )
    broker.ask(ops.DELETE_SESSION, client_id=client_id)
    return [f"deleted {shown(client_id)}"]


@broker_command(app, "pins")
def pins(broker: ControlClient) -> Told:
    """Show who reads the message log, furthest behind first. Nothing leaves the log before they have it."""
    found = msgspec.convert(broker.ask(ops.LIST_PINS), list[PinView])
    rows = [
        (shown(pin.reader), str(pin.partition), f"{pin.next_offset:,}", f"{pin.behind:,}") for pin in found
    ]
    return Told(found, table([("reader", "partition", "offset", "behind"), *rows], names=1))


@broker_command(app, "logs")
def logs(broker: ControlClient, *, clean: Clean = False, dry_run: DryRun = False, yes: Yes = False) -> Told:
    """Show the application logs in Kafka. The columns count what they hold and what of it is not acknowledged."""
    found = _logs(broker)
    if clean or dry_run:
        found = [log for log in found if log.lag is None and not log.problem]
    if clean and not dry_run:
        found = _clean(broker, found, yes=yes)
        return Told(found, [f"deleted {log.name}" for log in found])
    rows = [(log.name, _reader_of(log), _number(log.records), _number(log.lag)) for log in found]
    lines = table([("log", "read by", "records", "behind"), *rows], names=2)
    return Told(found, [*lines, *(f"\n{log.name}: {log.problem}" for log in found if log.problem)])


def _clean(broker: ControlClient, unread: list[ApplicationLogView], *, yes: bool) -> list[ApplicationLogView]:
    if unread and not yes:
        if not sys.stdin.isatty():
            raise UserError(
                f"{len(unread)} logs that nobody reads would be deleted: say --yes, or --dry-run to see them"
            )
        records = sum(log.records or 0 for log in unread)
        confirm(f"{len(unread)} logs that nobody reads go, with {counted(records, 'record')}", yes=False)
    gone: set[str] = set()
    for batch in _batched(log.name for log in unread):
        gone.update(broker.ask(ops.CLEAN_APPLICATION_LOGS, name=batch))
    return [log for log in unread if log.name in gone]


def _batched(names: Iterable[str]) -> Iterator[list[str]]:
    """So many as one request takes."""
    left = iter(names)
    while batch := list(islice(left, NAMES_AT_ONCE)):
        yield batch


def _logs(broker: ControlClient) -> list[ApplicationLogView]:
    return msgspec.convert(broker.ask(ops.LIST_APPLICATION_LOGS), list[ApplicationLogView])


def _with_logs(broker: ControlClient, sessions: list[SessionView]) -> list[SessionView]:
    """With what their logs hold, where those are in a store of their own; without, while it does not answer."""
    if not any(session.log for session in sessions):
        return sessions
    try:
        found = {log.name: log for log in _logs(broker)}
    except UserError as error:
        print(f"what application logs hold is not known: {error}", file=sys.stderr)
        return sessions
    return [session.with_log(found.get(session.log)) for session in sessions]


def _reader_of(log: ApplicationLogView) -> str:
    return shown(log.client_id or ", ".join(log.groups)) or "nobody"


def _number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _cells(session: SessionView) -> tuple[str, ...]:
    state = "here" if session.connected else "away"
    return (
        shown(session.client_id),
        session.type,
        state if session.kept else f"{state}, not kept",
        f"{session.subscriptions:,}",
        f"{session.queued:,}",
        f"{session.in_flight:,}",
        _number(session.behind),
    )


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None or value == "" else shown(str(value))
