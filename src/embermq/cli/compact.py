"""`embermq pipeline compact`: make few files of the many small ones of the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, Tasks, configuration, finite

if TYPE_CHECKING:
    from embermq.pipeline.jobs.compact import CompactionReport


def command(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, change nothing.")
    ] = False,
    older_than_hours: Annotated[
        float,
        typer.Option(
            "--older-than-hours",
            min=0,
            callback=finite,
            metavar="HOURS",
            help="Leave files younger than this alone.",
        ),
    ] = 1.0,
    target_mb: Annotated[
        int,
        typer.Option(
            "--target-mb",
            min=1,
            max=4096,
            metavar="MB",
            help="Size of a merged file; files of half of it stay.",
        ),
    ] = 128,
    tasks: Tasks = 0,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Merge small files of the lake. It goes directory by directory; the broker and its pipeline may be running."""
    from embermq.app.compaction import EXIT_REFUSED, CompactionOrder, run_compaction
    from embermq.cli.message_bar import MessageBar

    settings = configuration(config, assignments, data_dir).settings
    order = CompactionOrder(
        target_mb=target_mb, older_than_hours=older_than_hours, dry_run=dry_run, tasks=tasks
    )
    if as_json:
        report = run_compaction(order, settings, _print_progress)
        print(msgspec.json.encode({"report": report}).decode())
    else:
        with MessageBar("files") as bar:
            report = run_compaction(order, settings, bar.show)
        print("\n".join(lines_of(report)))
    raise typer.Exit(EXIT_REFUSED if report.refusals else 0)


def _print_progress(done: int, total: int) -> None:
    print(msgspec.json.encode({"done": done, "total": total}).decode(), flush=True)


def lines_of(report: CompactionReport) -> list[str]:
    """What a person reads at the end."""
    if report.dry_run:
        lines = [
            f"directories {report.directories:,}",
            f"files       {report.files_merged:,} would become {report.files_made:,} or fewer",
            f"bytes       {report.bytes_before:,} would be read",
        ]
    else:
        lines = [
            f"directories {report.directories:,}",
            f"files       {report.files_merged:,} became {report.files_made:,}",
            f"records     {report.records:,}",
            f"bytes       {report.bytes_before:,} became {report.bytes_after:,}",
        ]
    lines.append(f"took        {report.seconds:.1f} s")
    lines += [f"left as it is: {one.directory}: {one.reason}" for one in report.refusals]
    return lines
