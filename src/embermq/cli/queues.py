"""`embermq queues`: durable queues of a running broker."""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from embermq.admin import operations as ops
from embermq.app.control import ControlClient
from embermq.app.errors import IsThere, OptionError, UserError
from embermq.cli import dead_letters
from embermq.cli.control import broker_command
from embermq.cli.options import Yes
from embermq.cli.terminal import Told, confirm, group, shown, table

GROUP_HEADINGS = ("group", "state", "lag", "in flight", "backoff", "consumers")
CONSUMER_HEADINGS = ("consumer", "group", "state", "partitions", "in flight")


def group_lines(groups: Sequence[dict[str, Any]]) -> list[str]:
    """One line each."""
    rows = [
        (
            shown(one["name"]),
            _state(one),
            *(f"{one[name]:,}" for name in ("lag", "in_flight", "in_backoff", "consumers")),
        )
        for one in groups
    ]
    return table([GROUP_HEADINGS, *rows], names=2)


def consumer_lines(consumers: Sequence[dict[str, Any]]) -> list[str]:
    """One line each."""
    rows = [
        (
            shown(one["client_id"]),
            shown(one["group"]),
            f"away until {one['away_until']}" if one["away_until"] else "connected",
            "any" if one["partitions"] is None else _ranges(one["partitions"]),
            f"{one['in_flight']} of {one['prefetch']}",
        )
        for one in consumers
    ]
    return table([CONSUMER_HEADINGS, *rows], names=4)


def _state(group: dict[str, Any]) -> str:
    return f"paused, {_presence(group)}" if group["paused"] else _presence(group)


def _presence(group: dict[str, Any]) -> str:
    if group["removed_at"] is None:
        return "consumed"
    return f"no consumer since {_minute(group['idle_since'])}, removed {_minute(group['removed_at'])}"


def _minute(moment: str) -> str:
    return datetime.fromisoformat(moment).strftime("%Y-%m-%d %H:%M UTC")


def _ranges(numbers: list[int]) -> str:
    if not numbers:
        return "none"
    is_block = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1
    return f"{numbers[0]}-{numbers[-1]}" if is_block else ", ".join(map(str, numbers))


PAGE = 1_000
SETTINGS_BYTES_MAX = 64 * 1024
HEADINGS = ("queue", "ordering", "depth", "in flight", "backoff", "groups", "consumers", "oldest s")

app = group("Durable queues and their dead letters.")
app.add_typer(dead_letters.app, name="dlq")

Name = Annotated[str, typer.Argument(help="The queue: what comes after $queue/ in the topic.")]
OneGroup = Annotated[str, typer.Option("--group", metavar="GROUP", help="This group alone.")]
SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", metavar="FILE", help="Its settings as JSON; - for standard input."),
]


Match = Annotated[
    str, typer.Option("--match", metavar="PATTERN", help="Only names that fit; * ? [abc] are wildcards.")
]
Count = Annotated[int, typer.Option("--count", min=1, max=100, help="How many messages.")]
After = Annotated[int, typer.Option("--after", min=0, help="Begin after this sequence.")]
MessageId = Annotated[str, typer.Argument(metavar="ID", help="As peek and delayed show it.")]
EmptyGroup = Annotated[str, typer.Argument(help="A group that has no consumers.")]


@broker_command(app, "list")
def list_all(broker: ControlClient, match: Match = "*") -> Told:
    """Show queues by name, what they hold, who consumes."""
    found = list(broker.pages(ops.LIST_QUEUES, match=match, limit=PAGE))
    return Told(found, table([HEADINGS, *map(_cells, found)], names=2))


@broker_command(app, "show")
def show(broker: ControlClient, name: Name) -> Told:
    """Show a queue with its settings, groups and consumers."""
    found = broker.ask(ops.GET_QUEUE, name=name)
    found["groups"] = list(broker.pages(ops.LIST_GROUPS, name=name, limit=PAGE))
    found["consumers"] = list(broker.pages(ops.LIST_CONSUMERS, name=name, limit=PAGE))
    return Told(found, _detail(found))


def _detail(found: dict[str, Any]) -> Iterator[str]:
    figures = {key.replace("_", " "): value for key, value in found["stats"].items()}
    for section in (figures, _flat(found["settings"])):
        for key, value in section.items():
            yield f"{key:<32} {_word(value)}"
        yield ""
    yield from group_lines(found["groups"])
    yield ""
    yield from consumer_lines(found["consumers"])


@broker_command(app, "explain")
def explain(broker: ControlClient, name: Name) -> Told:
    """Explain why a queue delivers nothing."""
    found = broker.ask(ops.EXPLAIN_QUEUE, name=name)
    return Told(found, map(_reason, found))


def _reason(reason: dict[str, Any]) -> str:
    about = f"group {shown(reason['group'])}: " if reason["group"] else ""
    return f"{about}{shown(reason['text'])}"


@broker_command(app, "peek")
def peek(broker: ControlClient, name: Name, count: Count = 10, after: After = 0) -> Told:
    """Show the oldest messages without consuming them."""
    found = broker.ask(ops.PEEK_MESSAGES, name=name, limit=count, after=after)
    return Told(found, _messages(found))


@broker_command(app, "delayed")
def delayed(broker: ControlClient, name: Name, count: Count = 10, after: After = 0) -> Told:
    """Show messages whose time has not come."""
    found = broker.ask(ops.LIST_DELAYED, name=name, limit=count, after=after)
    return Told(found, _messages(found))


@broker_command(app, "delete-message")
def delete_message(broker: ControlClient, name: Name, message_id: MessageId) -> list[str]:
    """Delete one message. Delayed and held ones too."""
    broker.ask(ops.DELETE_MESSAGE, name=name, message_id=message_id)
    return [f"deleted message {shown(message_id)} of {shown(name)}"]


@broker_command(app, "create")
def create(broker: ControlClient, name: Name, settings: SettingsFile = None) -> list[str]:
    """Make a queue, with default settings or those of a file."""
    try:
        broker.ask(ops.PUT_QUEUE, name=name, settings=_settings(settings), only_new=True)
    except IsThere as refusal:
        raise UserError(f"{refusal}; embermq queues configure changes it") from None
    return [f"created {shown(name)}"]


@broker_command(app, "configure")
def configure(broker: ControlClient, name: Name, *, settings: SettingsFile) -> list[str]:
    """Replace the settings of a queue. What the file does not name gets its default."""
    done = broker.ask(ops.PUT_QUEUE, name=name, settings=_settings(settings))
    return [f"{'created' if done['created'] else 'configured'} {shown(name)}"]


@broker_command(app, "purge")
def purge(broker: ControlClient, name: Name, *, yes: Yes = False) -> list[str]:
    """Delete the messages of a queue. Those that consumers hold go too."""
    confirm(f"every message of {shown(name)} goes", yes=yes)
    return [f"deleted {broker.ask(ops.PURGE_QUEUE, name=name)['messages']:,} messages"]


@broker_command(app, "delete")
def delete(broker: ControlClient, name: Name, *, yes: Yes = False) -> list[str]:
    """Delete a queue. Its messages, groups and settings go too. A queue that has consumers stays."""
    confirm(f"{shown(name)} goes with every message", yes=yes)
    done = broker.ask(ops.DELETE_QUEUE, name=name)
    return [f"deleted {shown(name)} with {done['messages']:,} messages"]


@broker_command(app, "pause")
def pause(broker: ControlClient, name: Name, group: OneGroup = "") -> list[str]:
    """Stop deliveries of a queue, or to one group."""
    broker.ask(ops.PAUSE_QUEUE, name=name, group=group or None)
    return [f"paused {_of_group(group)}{shown(name)}"]


@broker_command(app, "resume")
def resume(broker: ControlClient, name: Name, group: OneGroup = "") -> list[str]:
    """Resume deliveries."""
    broker.ask(ops.RESUME_QUEUE, name=name, group=group or None)
    return [f"resumed {_of_group(group)}{shown(name)}"]


@broker_command(app, "remove-group")
def remove_group(broker: ControlClient, name: Name, group: EmptyGroup, *, yes: Yes = False) -> list[str]:
    """Remove a group that has no consumers. Messages that no other group has to settle go too."""
    confirm(f"group {shown(group)} of {shown(name)} goes with what it alone has not settled", yes=yes)
    broker.ask(ops.REMOVE_GROUP, name=name, group=group)
    return [f"removed group {shown(group)} of {shown(name)}"]


def _of_group(group: str) -> str:
    return f"group {shown(group)} of " if group else ""


def _messages(found: list[dict[str, Any]]) -> Iterator[str]:
    for one in found:
        about = one["about"]
        states = (
            ", ".join(f"{shown(state['group'])} {state['state']}" for state in about["states"]) or "no group"
        )
        place = f"partition {about['partition']}"
        if about["visible"] is not None:
            place, states = f"sequence {about['sequence']}", f"delayed until {about['visible']}"
        key = "" if about["key"] is None else f"  key {shown(about['key'])}"
        yield f"{about['id']}  {place}{key}  {one['payload_bytes']:,} bytes  {states}"
        yield f"    {_payload(one)}"


def _settings(file: Path | None) -> bytes:
    if file is None:
        return b"{}"
    if str(file) == "-":
        content = sys.stdin.buffer.read(SETTINGS_BYTES_MAX + 1)
    else:
        with file.open("rb") as opened:
            content = opened.read(SETTINGS_BYTES_MAX + 1)
    if len(content) > SETTINGS_BYTES_MAX:
        raise OptionError(f"{file} has more than {SETTINGS_BYTES_MAX} bytes")
    return content


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        shown(one["name"]),
        one["ordering"],
        *(f"{one[name]:,}" for name in ("depth", "in_flight", "in_backoff", "groups", "consumers")),
        f"{one['oldest_age_s']:,.0f}",
    )


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items()) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None or value == "" else shown(str(value))


def _payload(one: dict[str, Any]) -> str:
    if "payload" in one:
        return shown(one["payload"])
    if "payload_base64" in one:
        return "0x" + b64decode(one["payload_base64"]).hex()
    return "(the body cannot be read any more)"
