"""`embermq sessions`: what a running broker holds for its clients."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.app.errors import UserError
from embermq.cli import parked
from embermq.cli.control import running_broker
from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, Yes
from embermq.cli.terminal import print_json, shown, table

if TYPE_CHECKING:
    from embermq.admin.session_values import ApplicationLogView, SessionView
    from embermq.app.control import ControlClient

HEADINGS = ("client id", "type", "state", "subscribed", "queued", "in flight", "behind")
NAMES = 3
LOGS = "/api/v1/application-logs"
NAMES_AT_ONCE = 20

app = typer.Typer(
    help="Sessions of clients, and parked messages.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(parked.app, name="parked")

ClientId = Annotated[str, typer.Argument(help="The client's id.")]


@app.command("list")
def list_all(
    *,
    match: Annotated[
        str,
        typer.Option("--match", metavar="PATTERN", help="Only client ids that fit; * ? [abc] are wildcards."),
    ] = "*",
    connected: Annotated[
        bool | None,
        typer.Option("--connected/--away", help="Only clients that are connected, or that are not."),
    ] = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show sessions by client id. The columns count what is subscribed, stored, sent and not acknowledged."""
    with running_broker(data_dir, config, assignments) as broker:
        found = [
            session
            for session in _all(broker)
            if fnmatchcase(session.client_id, match) and connected in (None, session.connected)
        ]
        found = _with_logs(broker, found)
    if as_json:
        print_json(found)
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
    from embermq.admin.session_values import SessionDetail

    with running_broker(data_dir, config, assignments) as broker:
        body = broker.ask("GET", "/api/v1/session", client_id=client_id)
        found = msgspec.json.decode(body, type=SessionDetail)
        found = msgspec.structs.replace(found, session=_with_logs(broker, [found.session])[0])
    if as_json:
        print_json(found)
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
    """End a client's connection. A kept session stays, and the client may connect again."""
    with running_broker(data_dir, config, assignments) as broker:
        broker.ask("POST", "/api/v1/session/disconnect", client_id=client_id)
    print(f"disconnected {shown(client_id)}")


@app.command("give")
def give(
    client_id: ClientId,
    user: Annotated[str, typer.Argument(metavar="USER", help="The user to whom it belongs from now on.")],
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Give a kept session to a user. A client of that user may then connect with its client id; nothing is lost."""
    with running_broker(data_dir, config, assignments) as broker:
        broker.ask("POST", "/api/v1/session/give", client_id=client_id, user=user)
    print(f"{shown(client_id)} belongs to {shown(user)}")


@app.command("delete")
def delete(
    client_id: ClientId,
    *,
    yes: Yes = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """End a session. Its connection, its subscriptions and every message that is stored for it go."""
    from embermq.admin.session_values import SessionDetail

    with running_broker(data_dir, config, assignments) as broker:
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
    """Show who reads the message log, furthest behind first. Nothing leaves the log before they have it."""
    from embermq.admin.session_values import PinView

    with running_broker(data_dir, config, assignments) as broker:
        found = msgspec.json.decode(broker.ask("GET", "/api/v1/pins"), type=list[PinView])
    if as_json:
        print_json(found)
        return
    rows = [(shown(pin.reader), f"{pin.next_offset:,}", f"{pin.behind:,}") for pin in found]
    for line in table([("reader", "position", "behind"), *rows], names=1):
        print(line)


@app.command("logs")
def logs(
    *,
    clean: Annotated[
        bool, typer.Option("--clean", help="Delete the logs that nobody reads and nobody ever will.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what --clean would delete.")] = False,
    yes: Yes = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show the application logs in Kafka. The columns count what they hold and what of it is not acknowledged."""
    with running_broker(data_dir, config, assignments) as broker:
        found = _logs(broker)
        if clean or dry_run:
            found = [log for log in found if log.lag is None and not log.problem]
        if clean and not dry_run and found:
            _clean(broker, found, yes=yes)
    if as_json:
        print_json(found)
        return
    if clean and not dry_run:
        for log in found:
            print(f"deleted {log.name}")
        return
    rows = [(log.name, _reader_of(log), _number(log.records), _number(log.lag)) for log in found]
    for line in table([("log", "read by", "records", "behind"), *rows], names=2):
        print(line)
    for log in found:
        if log.problem:
            print(f"\n{log.name}: {log.problem}")


def _clean(broker: ControlClient, unread: list[ApplicationLogView], *, yes: bool) -> None:
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(
                f"{len(unread)} logs that nobody reads would be deleted: say --yes, or --dry-run to see them"
            )
        records = sum(log.records or 0 for log in unread)
        typer.confirm(
            f"{len(unread)} logs that nobody reads go, with {records:,} records; sure?", abort=True, err=True
        )
    gone: set[str] = set()
    for batch in _batched(log.name for log in unread):
        body = broker.ask("DELETE", LOGS, name=batch)
        gone.update(msgspec.json.decode(body, type=list[str]))
    unread[:] = [log for log in unread if log.name in gone]


def _batched(names: Iterable[str]) -> Iterator[list[str]]:
    """So many as one request takes."""
    left = iter(names)
    while batch := list(islice(left, NAMES_AT_ONCE)):
        yield batch


def _logs(broker: ControlClient) -> list[ApplicationLogView]:
    from embermq.admin.session_values import ApplicationLogView

    return msgspec.json.decode(broker.ask("GET", LOGS), type=list[ApplicationLogView])


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


def _all(broker: ControlClient) -> Iterator[SessionView]:
    """Page by page, so that a broker with very many is not held up."""
    from embermq.admin.session_values import SessionView

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
        _number(session.behind),
    )


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None or value == "" else shown(str(value))
