"""`embermq pipeline report`: what went through the broker, as a page and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from embermq.app.config import Settings
from embermq.cli.options import AsJson, End, Into, OneOrAll, Start, Tasks, with_settings
from embermq.cli.terminal import print_report, shown, table
from embermq.model.amounts import counted
from embermq.tools.report_folder import PastOrder

if TYPE_CHECKING:
    from embermq.tools.report import ReportDone

SHOWN = 10


@with_settings
def command(
    settings: Settings,
    *,
    start: Start = "earliest",
    end: End = "",
    into: Into = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="The figures alone, and write no report.")
    ] = False,
    tasks: Tasks = 0,
    slot: OneOrAll = None,
    as_json: AsJson = False,
) -> None:
    """Report on traffic, clients, sizes, latencies and dead letters. Nothing is changed; the broker may be running. The
    report is a folder with a page and tables."""
    from embermq.cli.message_bar import job_told
    from embermq.tools.report import run_report_of

    order = PastOrder(start=start, end=end, into=into, dry_run=dry_run, tasks=tasks, slot=slot)
    with job_told("steps", as_json=as_json) as (progress, _):
        done = run_report_of(order, settings, progress)
    print_report({"report": done.report, "folder": done.folder}, _lines(done), as_json=as_json)


def _lines(done: ReportDone) -> list[str]:
    report = done.report
    lines = [
        *(f"range        {one}" for one in report.ranges),
        f"accepted     {counted(report.messages, 'message')} of {counted(report.payload_bytes, 'byte')}",
        f"publishers   {report.publishers_count:,}",
        f"dead letters {sum(one.letters for one in report.dead_letters):,}",
    ]
    if report.unreadable:
        lines.append(f"unreadable   {report.unreadable:,}")
    if report.roots:
        rows = [
            (shown(one.root), f"{one.messages:,}", f"{one.payload_bytes:,}", f"{one.p50:,}", f"{one.p99:,}")
            for one in report.roots[:SHOWN]
        ]
        lines += ["", *table([("first level", "messages", "bytes", "p50", "p99"), *rows], names=1)]
    if done.folder:
        lines += ["", f"report       {done.folder}"]
    return lines
