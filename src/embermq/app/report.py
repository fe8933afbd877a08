"""`embermq pipeline report`: what is asked for, and the folder of a report."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from embermq.app.config import Settings
from embermq.app.errors import EmberError
from embermq.app.letters_read import all_letters_file
from embermq.app.log_place import EARLIEST
from embermq.app.pipeline_side import driver_settings
from embermq.app.report_folder import (
    TABLES,
    data_of,
    lift_tables,
    now,
    past_range,
    report_folder,
    unfinished,
)
from embermq.pipeline.errors import PipelineError
from embermq.pipeline.places import Places
from embermq.ports.errors import StoreError

if TYPE_CHECKING:
    from embermq.pipeline.jobs.report import Progress
    from embermq.pipeline.jobs.report_values import TrafficReport

FOLDER = "reports"
"""In the data directory."""
PAGE, REPORT = "report.html", "report.json"


class ReportFailed(EmberError):
    """The world's fault: the message says what. No report is left."""


class ReportOrder(Struct, frozen=True, kw_only=True):
    """What an operator asks for. `into`: the folder, which must not be there; "" for one in the data directory.
    `tasks` of Spark at a time, 0 for one a core."""

    start: str = EARLIEST
    end: str = ""
    into: str = ""
    dry_run: bool = False
    tasks: int = 0


class ReportDone(Struct, frozen=True):
    """`folder` is "" for a dry run."""

    report: TrafficReport
    folder: str


def run_report_of(order: ReportOrder, settings: Settings, progress: Progress) -> ReportDone:
    """Raises OptionError, UserError, StartError, ReportFailed."""
    from embermq.pipeline.jobs.report import run_report
    from embermq.pipeline.jobs.report_page import report_page

    data_dir = data_of(settings)
    wanted, made_at = past_range(order.start, order.end), now()
    folder = report_folder(order.into, data_dir / FOLDER, made_at)
    try:
        report = partial(run_report, driver_settings(settings), Places(data_dir), wanted)
        with all_letters_file(settings) as letters:
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
    except (PipelineError, StoreError) as error:
        raise ReportFailed(str(error)) from error
    except OSError as error:
        raise ReportFailed(f"the report cannot be written: {error}") from error
