"""`embermq messages`: what the archive holds."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.app.errors import UserError
from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, configuration
from embermq.cli.terminal import shown

if TYPE_CHECKING:
    from embermq.adapters.sqlite.message_store import SqliteMessageStore
    from embermq.ports.message_store import StoredMessage

PAGE = 500
BEFORE_ALL = -1

app = typer.Typer(help="The message store: show.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def messages() -> None:
    """The message store: show."""


@app.command("show")
def show(
    *,
    topic: Annotated[str, typer.Option("--topic", help="A topic, without wildcards.")],
    after: Annotated[
        int, typer.Option("--after", metavar="OFFSET", min=BEFORE_ALL, help="Begin behind this offset.")
    ] = BEFORE_ALL,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="At most so many.")] = 100,
    raw: Annotated[
        bool, typer.Option("--raw", help="Payloads alone, one behind the other, as they came.")
    ] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show the QoS 1 and 2 messages of a topic in log order, from the archive that the pipeline fills.

    With --json one object a line: `payload` is text, or `payload_base64` where it is not UTF-8.
    """
    from embermq.adapters.sqlite.message_store import SqliteMessageStore

    directory = Path(configuration(config, assignments, data_dir).settings.data_dir)
    path = directory / "messages.db"
    if not path.is_file():
        raise UserError(f"{directory} has no message store: the pipeline's query `archive` has not run there")
    with closing(SqliteMessageStore(path)) as store:
        for found in _range(store, topic, after, limit):
            if raw:
                sys.stdout.buffer.write(found.message.payload)
            else:
                print(_as_json(found) if as_json else _as_line(found))


def _range(store: SqliteMessageStore, topic: str, after: int, limit: int) -> Iterator[StoredMessage]:
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
        f"{found.offset}  {_time(message.accepted_ms)}  QoS {message.qos}{retained}  {shown(message.publisher)}  "
        f"{_readable(message.payload)}"
    )


def _as_json(found: StoredMessage) -> str:
    message = found.message
    answer: dict[str, object] = {
        "offset": found.offset,
        "topic": message.topic,
        "accepted": _time(message.accepted_ms),
        "expires": _time(message.expires_ms) if message.expires_ms else None,
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


def _time(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
