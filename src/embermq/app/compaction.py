"""`embermq pipeline compact`: what is asked for, in the words of the job. The broker and its pipeline may run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from embermq.app.config import Settings
from embermq.app.errors import EmberError, UserError
from embermq.pipeline.places import Places

if TYPE_CHECKING:
    from embermq.pipeline.jobs.compact import CompactionReport, Progress

EXIT_REFUSED = 3
"""Everything went well, but some directories were left as they are."""
MEGABYTE = 1024 * 1024
HOUR_NS = 3_600_000_000_000


class CompactionFailed(EmberError):
    """The world's fault: the message says what. What is done stays done."""


class CompactionOrder(Struct, frozen=True, kw_only=True):
    """What an operator asks for. `tasks` at a time, 0 for one a core."""

    target_mb: int
    older_than_hours: float
    dry_run: bool
    tasks: int


def run_compaction(order: CompactionOrder, settings: Settings, progress: Progress) -> CompactionReport:
    """Raises UserError, CompactionFailed. Interrupted or killed, the next one goes on with what is not done."""
    from embermq.pipeline.errors import PipelineError
    from embermq.pipeline.jobs.compact import CompactionTerms, compact

    places = Places(Path(settings.data_dir).absolute())
    if not places.lake.is_dir() or not places.lake_ledger.is_file():
        raise UserError(f"{places.data_dir} has no lake; name the broker's data directory with --data-dir")
    terms = CompactionTerms(
        target_bytes=order.target_mb * MEGABYTE,
        older_than_ns=time.time_ns() - int(order.older_than_hours * HOUR_NS),
        tasks=order.tasks,
        dry=order.dry_run,
    )
    try:
        return compact(settings.pipeline, places, terms, progress)
    except PipelineError as error:
        raise CompactionFailed(str(error)) from error
