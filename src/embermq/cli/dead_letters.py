"""`embermq queues dlq`: dead letters of durable queues."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from embermq.admin import operations as ops
from embermq.app.control import ControlClient
from embermq.app.errors import OptionError, UserError
from embermq.cli.control import broker_command
from embermq.cli.options import finite
from embermq.cli.terminal import Told, group, shown, table
from embermq.model.amounts import counted

PAGE = 1_000
RETRIED_AT_ONCE = 100_000
"""The most that the broker does for one request."""
EXIT_SOME_STAY = 3
"""Everything went well, but some dead letters were left where they are."""
NAMED_MAX = 10

app = group("Dead letters of a queue: list, retry.")

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


Letters = Annotated[list[str] | None, typer.Argument(help="Their ids, as list shows them.")]
All = Annotated[bool, typer.Option("--all", help="All of them, or all that the other options select.")]
Rate = Annotated[
    float | None,
    typer.Option("--rate", min=0.001, callback=finite, help="At most this many a second, in the background."),
]
HEADINGS = ("id", "message", "queue", "group", "reason", "moved", "last error", "deliveries")


@broker_command(app, "list")
def list_all(
    broker: ControlClient, name: Name, group: Group = "", reason: Reason = "", error: Error = ""
) -> Told:
    """Show dead letters, the oldest first, without consuming them."""
    letters = broker.pages(
        ops.LIST_DEAD_LETTERS, name=name, group=group, reason=reason, error=error, limit=PAGE
    )
    found = list(letters)
    return Told(found, table([HEADINGS, *map(_cells, found)], names=7))


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        one["id"],
        one["message_id"],
        shown(one["queue"]),
        shown(one["group"]) or "-",
        one["reason"],
        one["moved"],
        shown(one["last_error"]),
        str(one["deliveries"]),
    )


@broker_command(app, "retry")
def retry(
    broker: ControlClient,
    name: Name,
    letters: Letters = None,
    *,
    everything: All = False,
    group: Group = "",
    reason: Reason = "",
    error: Error = "",
    rate: Rate = None,
) -> list[str]:
    """Put dead letters back. They go to the tail of their queue, with no attempts, for the group that failed them."""
    filters = {"group": group, "reason": reason, "error": error}
    if bool(letters) == everything or (letters and (rate is not None or any(filters.values()))):
        raise OptionError(
            "say either the ids of dead letters, as list shows them, or --all, perhaps with a filter"
        )
    if letters:
        return [f"put back {counted(_put_back(broker, name, letters), 'message')}"]
    if rate is not None:
        done = broker.ask(ops.RETRY_DEAD_LETTERS, name=name, rate=rate, **filters)
        count = done["matched"] - done["orphaned"] - done["crowded"]
        print(f"putting back {counted(count, 'message')}, {rate:g} a second")
    else:
        done = _put_all_back(broker, name, filters)
        print(f"put back {counted(done['messages'], 'message')}")
    if done["held"]:
        print(f"{done['held']:,} stay: consumers of the dead letters have them", file=sys.stderr)
    if done["orphaned"]:
        print(about_orphaned(done["orphaned"], done["missing_queues"]), file=sys.stderr)
    if done["crowded"]:
        print(about_crowded(done["crowded"], done["full_queues"]), file=sys.stderr)
    raise typer.Exit(EXIT_SOME_STAY if done["held"] or done["orphaned"] or done["crowded"] else 0)


def _put_back(broker: ControlClient, name: str, letters: Sequence[str]) -> int:
    """One by one; how many messages that were."""
    count = 0
    for letter in letters:
        try:
            count += broker.ask(ops.RETRY_DEAD_LETTER, name=name, id=letter)["messages"]
        except UserError as refusal:
            raise type(refusal)(f"{refusal}; put back before it: {counted(count, 'message')}") from None
    return count


def _put_all_back(broker: ControlClient, name: str, filters: dict[str, str]) -> dict[str, Any]:
    """As the last answer says what stays, and with all that went back, however many requests it took."""
    count = 0
    while True:
        done: dict[str, Any] = broker.ask(ops.RETRY_DEAD_LETTERS, name=name, limit=RETRIED_AT_ONCE, **filters)
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
