"""`embermq messages`: what the archive holds."""

from __future__ import annotations

import sys
import time
from base64 import b64decode
from collections.abc import Iterable
from itertools import islice
from typing import Annotated

import msgspec
import typer
from msgspec import UNSET

from embermq.admin import operations as ops
from embermq.admin.values import BEFORE_ALL, PAGE_MAX, PRUNED_AT_ONCE, ArchivedMessage
from embermq.app.control import ControlClient
from embermq.app.directory_client import archive_here
from embermq.app.errors import OptionError
from embermq.cli.control import broker_command
from embermq.cli.options import AsJson, Slot, finite
from embermq.cli.terminal import Told, group, shown
from embermq.model.amounts import counted
from embermq.model.moments import iso_ms
from embermq.mqtt.topics.names import has_wildcard

MS_PER_HOUR = 3_600_000
HOURS_MAX = 10_000_000
app = group("The message store: show, prune.")

Topic = Annotated[str, typer.Option("--topic", help="A topic, without wildcards.")]
After = Annotated[
    int, typer.Option("--after", metavar="OFFSET", min=BEFORE_ALL, help="Begin after this offset.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="At most this many.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="Print the payloads alone, one after the other, as they came.")
]
Hours = Annotated[
    float,
    typer.Option(
        "--older-than-hours",
        min=0,
        max=HOURS_MAX,
        callback=finite,
        metavar="HOURS",
        help="Age from when the broker accepted them.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count them, delete nothing.")]


@broker_command(app, "show", here=archive_here)
def show(
    broker: ControlClient,
    *,
    topic: Topic,
    after: After = BEFORE_ALL,
    limit: Limit = 100,
    raw: Raw = False,
    slot: Slot = None,
    as_json: AsJson = False,
) -> None:
    """Show archived messages of a topic. QoS 1 and 2, in log order, from the archive that the pipeline fills.

    With --json one object a line: `payload` is text, or `payload_base64` where it is not UTF-8.
    """
    if has_wildcard(topic):
        raise OptionError(f"{shown(topic)!r} has wildcards; the messages of one topic are shown")
    asked = broker.pages(ops.LIST_ARCHIVED, topic=topic, after=after, limit=min(limit, PAGE_MAX), slot=slot)
    found = (msgspec.convert(one, ArchivedMessage) for one in islice(asked, limit))
    _print(found, topic, after, raw=raw, as_json=as_json)


@broker_command(app, "prune", here=archive_here)
def prune(
    broker: ControlClient, *, older_than_hours: Hours, dry_run: DryRun = False, slot: Slot = None
) -> Told:
    """Delete archived messages that are older, a few thousand at a time. The broker may be running."""
    from embermq.cli.message_bar import MessageBar

    before = iso_ms(max(0, round(time.time() * 1000 - older_than_hours * MS_PER_HOUR)))
    found = broker.ask(ops.COUNT_ARCHIVED, before=before, slot=slot)["messages"]
    if dry_run:
        told = f"older than {before}: {counted(found, 'message')}; nothing was deleted"
        return Told({"older": found, "deleted": 0}, [told])
    deleted, rows = 0, PRUNED_AT_ONCE
    with MessageBar() as bar:
        while rows == PRUNED_AT_ONCE:
            rows = broker.ask(ops.PRUNE_ARCHIVE, before=before, slot=slot)["messages"]
            deleted += rows
            bar.show(deleted, max(found, deleted))
    told = f"deleted {counted(deleted, 'message')} older than {before}"
    return Told({"older": found, "deleted": deleted}, [told])


def _print(messages: Iterable[ArchivedMessage], topic: str, after: int, *, raw: bool, as_json: bool) -> None:
    is_any = False
    for found in messages:
        is_any = True
        if raw:
            sys.stdout.buffer.write(_payload(found))
        else:
            print(msgspec.json.encode(found).decode() if as_json else _as_line(found))
    if not is_any:
        behind = f" behind offset {after}" if after > BEFORE_ALL else ""
        print(
            f"the archive has no message of topic {shown(topic)}{behind}; embermq pipeline status shows how far it is",
            file=sys.stderr,
        )


def _as_line(found: ArchivedMessage) -> str:
    retained = " retained" if found.retain else ""
    payload = shown(found.payload) if found.payload is not UNSET else f"0x{_payload(found).hex()}"
    return f"{found.offset}  {found.accepted}  QoS {found.qos}{retained}  {shown(found.publisher)}  {payload}"


def _payload(found: ArchivedMessage) -> bytes:
    if found.payload is not UNSET:
        return found.payload.encode()
    assert found.payload_base64 is not UNSET
    return b64decode(found.payload_base64)
