"""`embermq pipeline compact`: put the lake in order by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embermq.app.config import Settings
from embermq.app.errors import UserError
from embermq.cli.options import AsJson, Tasks, with_settings
from embermq.cli.terminal import print_report
from embermq.model.amounts import counted

if TYPE_CHECKING:
    from embermq.pipeline.jobs.compact import CompactionReport


@with_settings
def command(
    settings: Settings,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what there is and would be deleted, change nothing.")
    ] = False,
    tasks: Tasks = 0,
    as_json: AsJson = False,
) -> None:
    """Put the lake in order. It merges files and deletes what is too old, as a running pipeline does by itself."""
    from embermq.app.slots import check_no_slots
    from embermq.cli.message_bar import job_told
    from embermq.pipeline.jobs.compact import compact
    from embermq.pipeline.places import Places

    check_no_slots(settings)
    places = Places(Path(settings.data_dir).absolute())
    if not places.lake_ledger.is_file():
        raise UserError(f"{places.data_dir} has no lake; name the broker's data directory with --data-dir")
    with job_told("steps", as_json=as_json) as (progress, _):
        report = compact(settings.pipeline, places, tasks=tasks, dry=dry_run, progress=progress)
    print_report({"report": report}, lines_of(report), as_json=as_json)


def lines_of(report: CompactionReport) -> list[str]:
    """What a person reads at the end."""
    if report.dry_run:
        return [
            f"files    {report.files_before:,} of {counted(report.bytes_before, 'byte')} in all",
            f"deleted  {report.deleted:,} records would be, which are older than the lake keeps",
        ]
    return [
        f"deleted  {counted(report.deleted, 'record')}, older than the lake keeps",
        f"merged   {counted(report.files_merged, 'file')} into {report.files_made:,}",
        f"files    {report.files_before:,} became {report.files_after:,}",
        f"bytes    {report.bytes_before:,} became {report.bytes_after:,}",
        f"took     {report.seconds:.1f} s",
    ]
