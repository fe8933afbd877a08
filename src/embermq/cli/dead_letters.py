"""`embermq queues dlq`: dead letters of durable queues."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from embermq.app.errors import OptionError, UserError
from embermq.cli.control import running_broker
from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, finite
from embermq.cli.paths import queue_path, quoted
from embermq.cli.terminal import print_json, shown, table

if TYPE_CHECKING:
    from embermq.app.control import ControlClient

PAGE = 1_000
RETRIED_AT_ONCE = 100_000
"""The most that the broker does for one request."""
EXIT_SOME_STAY = 3
"""Everything went well, but some dead letters were left where they are."""
NAMED_MAX = 10

app = typer.Typer(help="Dead letters of a queue: list, retry.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="The queue they come from, or the one they are in.")]
Group = Annotated[str, typer.Option("--group", help="Only those of this consumer group.")]
Reason = Annotated[
    str, typer.Option("--reason", help="Only rejected, max_retries, timeout, overflow or expired.")
]
Error = Annotated[
    str,
    typer.Option(
        "--error", metavar="PATTERN", help="Only those whose last error fits; * ? [abc] are wildcards."
    ),
]


@app.command("list")
def list_all(
    name: Name,
    *,
    group: Group = "",
    reason: Reason = "",
    error: Error = "",
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show dead letters, the oldest first, without consuming them."""
    with running_broker(data_dir, config, assignments) as broker:
        found = list(_all(broker, name, {"group": group, "reason": reason, "error": error}))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one["id"],
            one["message_id"],
            shown(one["queue"]),
            shown(one["group"]) or "-",
            one["reason"],
            one["moved"],
            shown(one["last_error"]),
            str(one["deliveries"]),
        )
        for one in found
    ]
    headings = ("id", "message", "queue", "group", "reason", "moved", "last error", "deliveries")
    for line in table([headings, *rows], names=7):
        print(line)


@app.command("retry")
def retry(
    name: Name,
    letters: Annotated[list[str] | None, typer.Argument(help="Their ids, as list shows them.")] = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="All of them, or all that the other options select.")
    ] = False,
    group: Group = "",
    reason: Reason = "",
    error: Error = "",
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", min=0.001, callback=finite, help="At most this many a second, in the background."
        ),
    ] = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Put dead letters back. They go to the tail of their queue, with no attempts, for the group that failed them."""
    filters = {"group": group, "reason": reason, "error": error}
    if bool(letters) == everything or (letters and (rate is not None or any(filters.values()))):
        raise OptionError(
            "say either the ids of dead letters, as list shows them, or --all, perhaps with a filter"
        )
    with running_broker(data_dir, config, assignments) as broker:
        if letters:
            count = 0
            for letter in letters:
                try:
                    body = broker.ask("POST", f"{_path(name)}/{quoted(letter)}/retry")
                except UserError as refusal:
                    raise type(refusal)(f"{refusal}; {count:,} messages were put back before it") from None
                count += msgspec.json.decode(body)["messages"]
            print(f"put back {count:,} messages")
            return
        if rate is not None:
            done = msgspec.json.decode(broker.ask("POST", f"{_path(name)}/retry", **filters, rate=str(rate)))
        else:
            done = _put_all_back(broker, name, filters)
    if rate is not None:
        print(
            f"putting back {done['matched'] - done['orphaned'] - done['crowded']:,} messages, {rate:g} a second"
        )
    else:
        print(f"put back {done['messages']:,} messages")
    if done["held"]:
        print(f"{done['held']:,} stay: consumers of the dead letters have them", file=sys.stderr)
    if done["orphaned"]:
        print(about_orphaned(done["orphaned"], done["missing_queues"]), file=sys.stderr)
    if done["crowded"]:
        print(about_crowded(done["crowded"], done["full_queues"]), file=sys.stderr)
    raise typer.Exit(EXIT_SOME_STAY if done["held"] or done["orphaned"] or done["crowded"] else 0)


def _put_all_back(broker: ControlClient, name: str, filters: dict[str, str]) -> dict[str, Any]:
    """As the last answer says what stays, and with all that went back, however many requests it took."""
    count = 0
    while True:
        done: dict[str, Any] = msgspec.json.decode(
            broker.ask("POST", f"{_path(name)}/retry", **filters, limit=str(RETRIED_AT_ONCE))
        )
        count += done["messages"]
        # A few may have gone meanwhile by another way: only far fewer than asked for are the last.
        if not done["messages"] or 2 * done["messages"] < RETRIED_AT_ONCE - done["held"]:
            return {**done, "messages": count}


def about_orphaned(count: int, missing_queues: Sequence[str]) -> str:
    """Why they stay, and what can be done about it."""
    names = ", ".join(map(shown, missing_queues[:NAMED_MAX]))
    more = " and others" if len(missing_queues) > NAMED_MAX else ""
    if len(missing_queues) == 1:
        told = f"queue {names} is not there any more; make it first, then they can go back"
    else:
        told = f"queues {names}{more} are not there any more; make them first, then they can go back"
    return f"{count:,} stay: {told}"


def about_crowded(count: int, full_queues: Sequence[str]) -> str:
    """The same of those whose group was removed."""
    names = ", ".join(map(shown, full_queues[:NAMED_MAX]))
    more = " and others" if len(full_queues) > NAMED_MAX else ""
    return (
        f"{count:,} stay: their consumer groups were removed, and {names}{more} can have no more groups"
        " (queues.groups_max); remove one that nobody needs, or raise the limit"
    )


def _path(name: str) -> str:
    return f"{queue_path(name)}/dlq"


def _all(broker: ControlClient, name: str, filters: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Page by page."""
    after = ""
    while page := msgspec.json.decode(
        broker.ask("GET", _path(name), after=after, limit=str(PAGE), **filters), type=list[dict[str, Any]]
    ):
        yield from page
        after = page[-1]["id"]
