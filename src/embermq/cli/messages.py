"""`embermq messages`: what the archive holds."""

from __future__ import annotations

import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.app.config import Settings
from embermq.app.errors import OptionError
from embermq.cli.options import AsJson, Slot, finite, with_settings
from embermq.cli.terminal import group, shown
from embermq.model.amounts import counted
from embermq.model.moments import iso_ms

if TYPE_CHECKING:
    from embermq.ports.message_store import MessageStore, StoredMessage

PAGE = 500
PRUNE_ROWS = 5_000
"""Deleted in one transaction: the pipeline waits for so long to go on writing."""
BEFORE_ALL = -1
MS_PER_HOUR = 3_600_000
HOURS_MAX = 10_000_000
app = group("The message store: show, prune.")


@app.command("show")
@with_settings
def show(
    settings: Settings,
    *,
    topic: Annotated[str, typer.Option("--topic", help="A topic, without wildcards.")],
    after: Annotated[
        int, typer.Option("--after", metavar="OFFSET", min=BEFORE_ALL, help="Begin after this offset.")
    ] = BEFORE_ALL,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="At most this many.")] = 100,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the payloads alone, one after the other, as they came.")
    ] = False,
    slot: Slot = None,
    as_json: AsJson = False,
) -> None:
    """Show archived messages of a topic. QoS 1 and 2, in log order, from the archive that the pipeline fills.

    With --json one object a line: `payload` is text, or `payload_base64` where it is not UTF-8.
    """
    if "#" in topic or "+" in topic:
        raise OptionError(f"{shown(topic)!r} has wildcards; the messages of one topic are shown")
    is_any = False
    with _store(settings, slot) as store:
        for found in _range(store, topic, after, limit):
            is_any = True
            if raw:
                sys.stdout.buffer.write(found.message.payload)
            else:
                print(_as_json(found) if as_json else _as_line(found))
    if not is_any:
        behind = f" behind offset {after}" if after > BEFORE_ALL else ""
        print(
            f"the archive has no message of topic {shown(topic)}{behind}; embermq pipeline status shows how far it is",
            file=sys.stderr,
        )


@app.command("prune")
@with_settings
def prune(
    settings: Settings,
    *,
    older_than_hours: Annotated[
        float,
        typer.Option(
            "--older-than-hours",
            min=0,
            max=HOURS_MAX,
            callback=finite,
            metavar="HOURS",
            help="Age from when the broker accepted them.",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count them, delete nothing.")] = False,
    slot: Slot = None,
    as_json: AsJson = False,
) -> None:
    """Delete archived messages that are older, a few thousand at a time. The broker may be running."""
    from embermq.cli.message_bar import MessageBar

    before_ms = round(time.time() * 1000 - older_than_hours * MS_PER_HOUR)
    with _store(settings, slot) as store:
        found = store.count_older(before_ms)
        deleted = 0
        with MessageBar() as bar:
            while not dry_run:
                rows = store.prune(before_ms, PRUNE_ROWS)
                deleted += rows
                bar.show(deleted, max(found, deleted))
                if rows < PRUNE_ROWS:
                    break
    if as_json:
        print(msgspec.json.encode({"older": found, "deleted": deleted}).decode())
    elif dry_run:
        print(f"older than {iso_ms(before_ms)}: {counted(found, 'message')}; nothing was deleted")
    else:
        print(f"deleted {counted(deleted, 'message')} older than {iso_ms(before_ms)}")


def _store(settings: Settings, slot: int | None) -> AbstractContextManager[MessageStore]:
    """Where the broker archives, if the settings lead there. Raises OptionError, UserError, StartError."""
    from embermq.app.message_archive import message_store_of
    from embermq.app.places_noted import check_archive
    from embermq.app.slots import named_slot

    check_archive(settings)
    return message_store_of(named_slot(settings, slot))


def _range(store: MessageStore, topic: str, after: int, limit: int) -> Iterator[StoredMessage]:
    """Page by page, so that the pipeline's writer is not held up."""
    while limit:
        page = store.range(topic, after, min(limit, PAGE))
        if not page:
            return
        yield from page
        after = page[-1].offset
        limit -= len(page)


def _as_line(found: StoredMessage) -> str:
    message = found.message
    retained = " retained" if message.retain else ""
    return (
        f"{found.offset}  {iso_ms(message.accepted_ms)}  QoS {message.qos}{retained}  {shown(message.publisher)}  "
        f"{_readable(message.payload)}"
    )


def _as_json(found: StoredMessage) -> str:
    message = found.message
    answer: dict[str, object] = {
        "offset": found.offset,
        "topic": message.topic,
        "accepted": iso_ms(message.accepted_ms),
        "expires": iso_ms(message.expires_ms) if message.expires_ms else None,
        "qos": message.qos,
        "retain": message.retain,
        "publisher": message.publisher,
    }
    try:
        answer["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        answer["payload_base64"] = b64encode(message.payload).decode()
    if message.properties is not None:
        kept = msgspec.to_builtins(message.properties)
        answer["properties"] = {name: value for name, value in kept.items() if value not in (None, (), [])}
    return msgspec.json.encode(answer).decode()


def _readable(payload: bytes) -> str:
    try:
        return shown(payload.decode())
    except UnicodeDecodeError:
        return f"0x{payload.hex()}"
