"""`embermq log`: the segment files of the embedded message log."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.app.config import Settings
from embermq.cli.options import AsJson, with_settings
from embermq.cli.terminal import group, shown
from embermq.model.moments import iso_ms

if TYPE_CHECKING:
    from embermq.tools.log_look import FileReport, ShownRecord

EXIT_DAMAGED = 3

app = group("The embedded message log: verify, show.")


@app.command("verify")
@with_settings
def verify(settings: Settings, *, as_json: AsJson = False) -> None:
    """Read the whole log and compare every checksum. The broker may run. Exit code 3 when something is damaged.

    One line a file; with --json one object a line.
    """
    from embermq.tools.log_look import verify_log

    damaged = 0
    for report in verify_log(Path(settings.data_dir)):
        print(msgspec.json.encode(report).decode() if as_json else _file_line(report))
        damaged += len(report.damage)
    if damaged:
        raise typer.Exit(EXIT_DAMAGED)


@app.command("show")
@with_settings
def show(
    settings: Settings,
    *,
    from_offset: Annotated[int, typer.Option("--from", min=0, help="Begin at this offset.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="At most this many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List records of the log. Offset, time, QoS, size, topic and publisher; payloads are not shown."""
    from embermq.tools.log_look import read_log

    entries = read_log(Path(settings.data_dir), from_offset)
    for entry in islice(entries, limit):
        print(_as_json(entry) if as_json else _entry_line(entry))


def _file_line(report: FileReport) -> str:
    line = (
        f"{report.name}  offsets {report.start:,} to {report.end:,}  {report.frames:,} frames  "
        f"{report.body_bytes:,} bytes  {'damaged' if report.damage else 'ok'}"
    )
    return "\n".join([line, *(f"  {shown(place)}" for place in report.damage)])


def _entry_line(entry: ShownRecord) -> str:
    if entry.record is None:
        return f"{entry.offset}  {iso_ms(entry.committed_ms)}  damaged: {shown(entry.problem)}"
    message = entry.record.message
    retain = " retained" if message.retain else ""
    return (
        f"{entry.offset}  {iso_ms(entry.committed_ms)}  QoS {message.qos}{retain}  {len(message.payload)} bytes  "
        f"{shown(message.topic)}  {shown(message.publisher)}"
    )


def _as_json(entry: ShownRecord) -> str:
    found: dict[str, object] = {"offset": entry.offset, "committed": iso_ms(entry.committed_ms)}
    if entry.record is None:
        found["problem"] = entry.problem
    else:
        message = entry.record.message
        found |= {
            "topic": message.topic,
            "publisher": message.publisher,
            "qos": message.qos,
            "retain": message.retain,
            "payload_bytes": len(message.payload),
        }
    return msgspec.json.encode(found).decode()
