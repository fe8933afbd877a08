"""`embermq pipeline audit`: what was accepted against what became of it, as a signed report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.app.config import Settings
from embermq.cli.options import AsJson, End, Into, Start, Tasks, with_settings
from embermq.cli.terminal import print_report, shown, table
from embermq.model.amounts import counted
from embermq.tools.report_folder import PastOrder

if TYPE_CHECKING:
    from embermq.tools.audit import AuditDone

EXIT_DIFFERENCES = 3
SHOWN = 20


@with_settings
def command(
    settings: Settings,
    *,
    start: Start = "earliest",
    end: End = "",
    into: Into = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare, and write no report.")] = False,
    verify: Annotated[
        Path | None,
        typer.Option("--verify", metavar="FOLDER", help="Check the signature of a report instead."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            metavar="FILE",
            help="The public key to check with; else audit.pub in the data directory.",
        ),
    ] = None,
    tasks: Tasks = 0,
    as_json: AsJson = False,
) -> None:
    """Compare what was accepted with what became of it. Nothing is changed; the broker may be running. The report is a
    folder with a page, tables and a signature."""
    from embermq.cli.message_bar import job_told
    from embermq.tools import audit

    if verify is not None:
        _verify(verify, key or Path(settings.data_dir) / audit.PUBLIC_KEY, as_json=as_json)
        return
    order = PastOrder(start=start, end=end, into=into, dry_run=dry_run, tasks=tasks)
    with job_told("steps", as_json=as_json) as (progress, _):
        done = audit.run_audit_of(order, settings, progress)
    print_report({"report": done.report, "folder": done.folder}, _lines(done), as_json=as_json)
    raise typer.Exit(EXIT_DIFFERENCES if done.report.differences_count else 0)


def _verify(folder: Path, key: Path, *, as_json: bool) -> None:
    from embermq.tools.audit import verify

    found = verify(folder, key)
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    one = found.statement
    print(f"{folder} is as it was made {one.made_at}, signed with the key {found.key}")
    print(f"log {one.log_id}, positions 0:{one.start} up to 0:{one.end}, {one.differences:,} differences")


def _lines(done: AuditDone) -> list[str]:
    report = done.report
    lines = [
        f"range        0:{report.start} up to 0:{report.end}",
        f"accepted     {counted(report.records, 'message')} of {counted(report.payload_bytes, 'byte')}",
        f"deliveries   {sum(report.deliveries.values()):,} to {counted(len(report.applications), 'application')}",
        *(f"  {count:>12,} {name}" for name, count in sorted(report.deliveries.items())),
        f"settled by   0:{report.dispatcher_floor} for all other sessions",
        f"differences  {report.differences_count:,}",
    ]
    unchecked = sum(not one.is_checked for one in report.applications)
    if unchecked:
        lines.append(
            f"not counted  {counted(unchecked, 'application')}: the range does not have their whole life"
        )
    if report.differences:
        rows = [
            (one.kind, shown(one.who), _position(one.offset), f"{one.messages:,}", shown(one.note))
            for one in report.differences[:SHOWN]
        ]
        lines += ["", *table([("what", "where", "position", "messages", "note"), *rows], names=5)]
    if done.folder:
        lines += ["", f"report       {done.folder}"]
    return lines


def _position(offset: int | None) -> str:
    return "" if offset is None else f"0:{offset}"
