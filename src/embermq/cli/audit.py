"""`embermq pipeline audit`: what was accepted against what became of it, as a signed report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.app.config import Settings
from embermq.cli.options import AsJson, End, Into, OneOrAll, Start, Tasks, with_settings
from embermq.cli.terminal import print_report, shown, table
from embermq.model.amounts import counted
from embermq.tools.report_folder import PastOrder, told_position

if TYPE_CHECKING:
    from embermq.pipeline.jobs.audit_values import AuditedLog
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
    slot: OneOrAll = None,
    as_json: AsJson = False,
) -> None:
    """Compare what was accepted with what became of it. Nothing is changed; the broker may be running. The report is a
    folder with a page, tables and a signature."""
    from embermq.cli.message_bar import job_told
    from embermq.tools import audit

    if verify is not None:
        _verify(verify, key or Path(settings.data_dir) / audit.PUBLIC_KEY, as_json=as_json)
        return
    order = PastOrder(start=start, end=end, into=into, dry_run=dry_run, tasks=tasks, slot=slot)
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
    for log in one.logs:
        print(f"{_of_slot(log.slot)}log {log.log_id}, positions {_range(log)}")
    print(f"{one.differences:,} differences")


def _lines(done: AuditDone) -> list[str]:
    report = done.report
    lines = [
        *(f"range        {_of_slot(one.slot)}{_range(one)}" for one in report.logs),
        f"accepted     {counted(report.records, 'message')} of {counted(report.payload_bytes, 'byte')}",
        f"deliveries   {sum(report.deliveries.values()):,} to {counted(len(report.applications), 'application')}",
        *(f"  {count:>12,} {name}" for name, count in sorted(report.deliveries.items())),
        *(
            f"settled by   {_of_slot(one.slot)}{told_position(one.dispatcher_floor)} for all other sessions"
            for one in report.logs
        ),
        f"differences  {report.differences_count:,}",
    ]
    unchecked = Counter(one.unchecked for one in report.applications if not one.is_checked)
    lines += [f"not counted  {counted(count, 'application')}: {why}" for why, count in unchecked.items()]
    lines += [f"not checked  {text}" for text in report.not_checked]
    if report.differences:
        rows = [
            (
                one.kind,
                shown(one.who),
                _position(one.offset, one.slot),
                f"{one.messages:,}",
                shown(one.note),
            )
            for one in report.differences[:SHOWN]
        ]
        lines += ["", *table([("what", "where", "position", "messages", "note"), *rows], names=5)]
    if done.folder:
        lines += ["", f"report       {done.folder}"]
    return lines


def _position(offset: int | None, slot: int | None) -> str:
    return "" if offset is None else f"{_of_slot(slot)}{told_position(offset)}"


def _range(log: AuditedLog) -> str:
    return f"{told_position(log.start)} up to {told_position(log.end)}"


def _of_slot(slot: int | None) -> str:
    return "" if slot is None else f"slot {slot}: "
