"""`embermq queues`: durable queues of a running broker."""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from embermq.app.errors import IsThere, OptionError, UserError
from embermq.cli import dead_letters
from embermq.cli.control import running_broker
from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, Yes
from embermq.cli.paths import QUEUES, queue_path, quoted
from embermq.cli.queue_groups import all_consumers, all_groups, print_consumers, print_groups
from embermq.cli.terminal import confirm, print_json, shown, table

if TYPE_CHECKING:
    from embermq.app.control import ControlClient

PAGE = 1_000
SETTINGS_BYTES_MAX = 64 * 1024
HEADINGS = ("queue", "ordering", "depth", "in flight", "backoff", "groups", "consumers", "oldest s")

app = typer.Typer(
    help="Durable queues and their dead letters.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(dead_letters.app, name="dlq")

Name = Annotated[str, typer.Argument(help="The queue: what comes after $queue/ in the topic.")]
OneGroup = Annotated[str, typer.Option("--group", metavar="GROUP", help="This group alone.")]
SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", metavar="FILE", help="Its settings as JSON; - for standard input."),
]


@app.command("list")
def list_all(
    *,
    match: Annotated[
        str, typer.Option("--match", metavar="PATTERN", help="Only names that fit; * ? [abc] are wildcards.")
    ] = "*",
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show queues by name, what they hold, who consumes."""
    with running_broker(data_dir, config, assignments) as broker:
        found = list(_all(broker, match))
    if as_json:
        print_json(found)
        return
    for line in table([HEADINGS, *map(_cells, found)], names=2):
        print(line)


@app.command("show")
def show(
    name: Name,
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show a queue with its settings, groups and consumers."""
    with running_broker(data_dir, config, assignments) as broker:
        found = msgspec.json.decode(broker.ask("GET", queue_path(name)))
        found["groups"] = list(all_groups(broker, queue_path(name)))
        found["consumers"] = list(all_consumers(broker, queue_path(name)))
    if as_json:
        print_json(found)
        return
    figures = {key.replace("_", " "): value for key, value in found["stats"].items()}
    for section in (figures, _flat(found["settings"])):
        for key, value in section.items():
            print(f"{key:<32} {_word(value)}")
        print()
    print_groups(found["groups"])
    print()
    print_consumers(found["consumers"])


@app.command("explain")
def explain(
    name: Name,
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Say why nothing is delivered."""
    with running_broker(data_dir, config, assignments) as broker:
        found = msgspec.json.decode(broker.ask("GET", f"{queue_path(name)}/explain"))
    if as_json:
        print_json(found)
        return
    for reason in found:
        about = f"group {shown(reason['group'])}: " if reason["group"] else ""
        print(f"{about}{shown(reason['text'])}")


@app.command("peek")
def peek(
    name: Name,
    *,
    count: Annotated[int, typer.Option("--count", min=1, max=100, help="How many messages.")] = 10,
    after: Annotated[int, typer.Option("--after", min=0, help="Begin after this sequence.")] = 0,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show the oldest messages without consuming them."""
    with running_broker(data_dir, config, assignments) as broker:
        body = broker.ask("GET", f"{queue_path(name)}/messages", limit=str(count), after=str(after))
    _print_messages(msgspec.json.decode(body), as_json=as_json)


@app.command("delayed")
def delayed(
    name: Name,
    *,
    count: Annotated[int, typer.Option("--count", min=1, max=100, help="How many messages.")] = 10,
    after: Annotated[int, typer.Option("--after", min=0, help="Begin after this sequence.")] = 0,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show messages whose time has not come."""
    with running_broker(data_dir, config, assignments) as broker:
        body = broker.ask("GET", f"{queue_path(name)}/delayed", limit=str(count), after=str(after))
    _print_messages(msgspec.json.decode(body), as_json=as_json)


@app.command("delete-message")
def delete_message(
    name: Name,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="As peek and delayed show it.")],
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Delete one message. Delayed and held ones too."""
    with running_broker(data_dir, config, assignments) as broker:
        broker.ask("DELETE", f"{queue_path(name)}/messages/{quoted(message_id)}")
    print(f"deleted message {shown(message_id)} of {shown(name)}")


@app.command("create")
def create(
    name: Name,
    *,
    settings: SettingsFile = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Make a queue, with default settings or those of a file."""
    content = _settings(settings)
    with running_broker(data_dir, config, assignments) as broker:
        try:
            broker.put(queue_path(name), content, only_new=True)
        except IsThere as refusal:
            raise UserError(f"{refusal}; embermq queues configure changes it") from None
    print(f"created {shown(name)}")


@app.command("configure")
def configure(
    name: Name,
    *,
    settings: SettingsFile,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Replace the settings of a queue. What the file does not name gets its default."""
    content = _settings(settings)
    with running_broker(data_dir, config, assignments) as broker:
        done = msgspec.json.decode(broker.put(queue_path(name), content))
    print(f"{'created' if done['created'] else 'configured'} {shown(name)}")


@app.command("purge")
def purge(
    name: Name,
    *,
    yes: Yes = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Delete the messages of a queue. Those that consumers hold go too."""
    confirm(f"every message of {shown(name)} goes", yes=yes)
    with running_broker(data_dir, config, assignments) as broker:
        done = msgspec.json.decode(broker.ask("POST", f"{queue_path(name)}/purge"))
    print(f"deleted {done['messages']:,} messages")


@app.command("delete")
def delete(
    name: Name,
    *,
    yes: Yes = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Delete a queue. Its messages, groups and settings go too. A queue that has consumers stays."""
    confirm(f"{shown(name)} goes with every message", yes=yes)
    with running_broker(data_dir, config, assignments) as broker:
        done = msgspec.json.decode(broker.ask("DELETE", queue_path(name)))
    print(f"deleted {shown(name)} with {done['messages']:,} messages")


@app.command("pause")
def pause(
    name: Name,
    *,
    group: OneGroup = "",
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Hand out nothing of a queue, or to one group."""
    with running_broker(data_dir, config, assignments) as broker:
        broker.ask("POST", f"{_place(name, group)}/pause")
    print(f"paused {f'group {shown(group)} of ' if group else ''}{shown(name)}")


@app.command("resume")
def resume(
    name: Name,
    *,
    group: OneGroup = "",
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Hand out messages again."""
    with running_broker(data_dir, config, assignments) as broker:
        broker.ask("POST", f"{_place(name, group)}/resume")
    print(f"resumed {f'group {shown(group)} of ' if group else ''}{shown(name)}")


@app.command("remove-group")
def remove_group(
    name: Name,
    group: Annotated[str, typer.Argument(help="A group that has no consumers.")],
    *,
    yes: Yes = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Remove a group that has no consumers. Messages that no other group has to settle go too."""
    confirm(f"group {shown(group)} of {shown(name)} goes with what it alone has not settled", yes=yes)
    with running_broker(data_dir, config, assignments) as broker:
        broker.ask("DELETE", f"{queue_path(name)}/groups/{quoted(group)}")
    print(f"removed group {shown(group)} of {shown(name)}")


def _place(name: str, group: str) -> str:
    return f"{queue_path(name)}/groups/{quoted(group)}" if group else queue_path(name)


def _print_messages(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for one in found:
        about = one["about"]
        states = (
            ", ".join(f"{shown(state['group'])} {state['state']}" for state in about["states"]) or "no group"
        )
        place = f"partition {about['partition']}"
        if about["visible"] is not None:
            place, states = f"sequence {about['sequence']}", f"delayed until {about['visible']}"
        key = "" if about["key"] is None else f"  key {shown(about['key'])}"
        print(f"{about['id']}  {place}{key}  {one['payload_bytes']:,} bytes  {states}")
        print(f"    {_payload(one)}")


def _all(broker: ControlClient, match: str) -> Iterator[dict[str, Any]]:
    """Page by page."""
    after = ""
    while page := msgspec.json.decode(
        broker.ask("GET", QUEUES, after=after, match=match, limit=str(PAGE)), type=list[dict[str, Any]]
    ):
        yield from page
        after = page[-1]["name"]


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
        f"{one['depth']:,}",
        f"{one['in_flight']:,}",
        f"{one['in_backoff']:,}",
        f"{one['groups']:,}",
        f"{one['consumers']:,}",
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
