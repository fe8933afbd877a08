"""`embermq pipeline report`: what is asked for, and the folder of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from embermq.app.config import Settings
from embermq.app.errors import EmberError
from embermq.app.log_place import EARLIEST
from embermq.app.report_folder import (
    TABLES,
    embedded_data,
    lift_tables,
    now,
    past_range,
    report_folder,
    unfinished,
)
from embermq.pipeline.errors import PipelineError
from embermq.pipeline.places import Places

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
    """Raises OptionError, UserError, ReportFailed."""
    from embermq.pipeline.jobs.report import run_report
    from embermq.pipeline.jobs.report_page import report_page

    data_dir = embedded_data(settings, "of a log in Kafka there is no report yet")
    wanted, made_at, places = past_range(order.start, order.end), now(), Places(data_dir)
    folder = report_folder(order.into, data_dir / FOLDER, made_at)
    try:
        if order.dry_run:
            found = run_report(
                settings.pipeline, places, wanted, into=None, tasks=order.tasks, progress=progress
            )
            return ReportDone(found, "")
        with unfinished(folder) as work:
            found = run_report(
                settings.pipeline, places, wanted, into=work / TABLES, tasks=order.tasks, progress=progress
            )
            lift_tables(work)
            (work / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
            (work / PAGE).write_text(
                report_page(found, made_at.isoformat(timespec="seconds")), encoding="utf-8"
            )
        return ReportDone(found, str(folder))
    except PipelineError as error:
        raise ReportFailed(str(error)) from error
    except OSError as error:
        raise ReportFailed(f"the report cannot be written: {error}") from error
