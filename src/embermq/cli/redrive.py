"""`embermq pipeline redrive`: put dead letters back in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from embermq.app.config import Settings
from embermq.cli.dead_letters import EXIT_SOME_STAY, about_crowded, about_orphaned
from embermq.cli.options import AsJson, Tasks, finite, with_settings
from embermq.cli.terminal import print_report, shown, table

if TYPE_CHECKING:
    from embermq.pipeline.jobs.redrive import RedriveReport

EXIT_INTERRUPTED = 130


@with_settings
def command(
    settings: Settings,
    *,
    queue: Annotated[
        str,
        typer.Option("--queue", metavar="NAME", help="The queue they come from, or the one they are in."),
    ],
    wanted: Annotated[
        str | None,
        typer.Option(
            "--filter", metavar="SQL", help="Only those for which this Spark SQL expression is true."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", min=0.001, max=1_000_000, callback=finite, help="Put back at most this many a second."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count them, show some of each reason, change nothing.")
    ] = False,
    tasks: Tasks = 0,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back in bulk. They have no attempts then, and go to the groups that failed them. The broker
    has to be running."""
    from embermq.cli.message_bar import job_told
    from embermq.tools.redrive import RedriveOrder, run_redrive

    order = RedriveOrder(queue=queue, wanted=wanted, rate=rate, dry_run=dry_run, tasks=tasks)
    with job_told("dead letters", as_json=as_json) as (progress, notice):
        report = run_redrive(order, settings, progress, notice)
    print_report({"report": report}, lines_of(report), as_json=as_json)
    if report.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(EXIT_SOME_STAY if report.held or report.orphaned or report.crowded else 0)


def lines_of(report: RedriveReport) -> list[str]:
    """What a person reads at the end."""
    lines = [
        f"dead letters {report.there:,} in {shown(report.letters_in)}",
        f"chosen       {report.chosen:,}{', nothing was changed' if report.dry_run else ''}",
    ]
    if not report.dry_run:
        lines.append(f"put back     {report.put_back:,}")
    if report.gone:
        lines.append(f"gone         {report.gone:,} were no dead letters any more when their turn came")
    if report.held:
        lines.append(f"held         {report.held:,} stay: a consumer of {shown(report.letters_in)} has them")
    if report.orphaned:
        lines.append(f"orphaned     {about_orphaned(report.orphaned, report.missing_queues)}")
    if report.crowded:
        lines.append(f"crowded      {about_crowded(report.crowded, report.full_queues)}")
    if report.interrupted:
        left = report.chosen - report.put_back - report.gone - report.held - report.orphaned - report.crowded
        lines.append(f"interrupted  {left:,} are dead letters still")
    lines.append(f"took         {report.seconds:.1f} s")
    if report.counts:
        rows = [
            (
                shown(one.queue),
                shown(one.group) or "-",
                one.reason,
                f"{one.chosen:,}",
                f"{one.there:,}",
            )
            for one in report.counts
        ]
        lines += ["", *table([("queue", "group", "reason", "chosen", "there"), *rows], names=3)]
    if report.samples:
        samples = [
            (
                one.id,
                one.message_id,
                one.reason,
                "-" if one.key is None else shown(one.key),
                f"{one.moved_at:%Y-%m-%d %H:%M:%S}",
                shown(one.last_error),
            )
            for one in report.samples
        ]
        headings = ("id", "message", "reason", "key", "moved at (UTC)", "last error")
        lines += ["", "the oldest of each reason:", *table([headings, *samples], names=6)]
    return lines
