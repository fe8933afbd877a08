"""`embermq pipeline report`: what is asked for, and the folder of a report."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from embermq.app.config import Settings
from embermq.app.pipeline_side import driver_settings
from embermq.app.slots import asked_slots
from embermq.pipeline.places import Places
from embermq.tools.redrive import all_letters_file
from embermq.tools.report_folder import (
    TABLES,
    PastOrder,
    data_of,
    lift_tables,
    now,
    past_range,
    report_folder,
    unfinished,
)

if TYPE_CHECKING:
    from embermq.pipeline.jobs.report import Progress
    from embermq.pipeline.jobs.report_values import TrafficReport

FOLDER = "reports"
"""In the data directory."""
PAGE, REPORT = "report.html", "report.json"


class ReportDone(Struct, frozen=True):
    """`folder` is "" for a dry run."""

    report: TrafficReport
    folder: str


def run_report_of(order: PastOrder, settings: Settings, progress: Progress) -> ReportDone:
    """Raises OptionError, UserError, StartError, JobFailed, PipelineError, StoreError."""
    from embermq.pipeline.jobs.report import run_report
    from embermq.pipeline.jobs.report_page import report_page

    data_dir = data_of(settings, by_slot=True)
    logs, made_at = asked_slots(settings, order.slot), now()
    wanted = past_range(order.start, order.end, len(logs))
    folder = report_folder(order.into, data_dir / FOLDER, made_at)
    report = partial(run_report, [*map(driver_settings, logs)], Places(data_dir), wanted)
    with ExitStack() as opened:
        letters = [opened.enter_context(all_letters_file(one)) for one in logs]
        report = partial(report, letters=letters, tasks=order.tasks, progress=progress)
        if order.dry_run:
            return ReportDone(report(into=None), "")
        with unfinished(folder) as work:
            found = report(into=work / TABLES)
            lift_tables(work)
            (work / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
            page = report_page(found, made_at.isoformat(timespec="seconds"))
            (work / PAGE).write_text(page, encoding="utf-8")
    return ReportDone(found, str(folder))
