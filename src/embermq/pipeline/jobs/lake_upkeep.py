"""Keeps the lake in order while the query goes on: few files, no records that are too old, no files that nobody reads.

It works in a thread of its own: merging takes longer than a batch, and readers and the next batches go on meanwhile.
"""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Protocol

from msgspec import Struct
from pyspark import InheritableThread

from embermq.pipeline.jvm_thread import closing_connection
from embermq.pipeline.sinks.delta_table import DeltaTable, Merged

NEW_FILES = 64
EVERY_MS = 3_600_000
"""Files are merged when there are so many new ones, or after an hour when there are fewer."""

log = logging.getLogger(__name__)

_ALONE = threading.Lock()
"""The lake and tables of rules are put in order one after the other: Java has the memory for one."""

Progress = Callable[[int, int], None]
"""Steps that are done, and how many there are."""
_STEPS = 3


class Tidied(Struct, frozen=True):
    """What one round has done: files that were merged, records that were too old."""

    merged: Merged
    deleted: int


def oldest_day(retention_days: int, today: date) -> date | None:
    """The first day that the lake keeps, None for all."""
    return today - timedelta(days=retention_days) if 0 < retention_days < today.toordinal() else None


def tidy(
    table: DeltaTable, retention_days: int, today: date, progress: Progress = lambda done, total: None
) -> Tidied:
    """Delete records that are too old, merge files, remove those that nobody reads any more. The second time there is
    nothing to do."""
    oldest = oldest_day(retention_days, today)
    deleted = table.delete_before(oldest) if oldest else 0
    progress(1, _STEPS)
    merged = table.merge()
    progress(2, _STEPS)
    table.vacuum()
    progress(_STEPS, _STEPS)
    return Tidied(merged, deleted)


class KeptTable(Protocol):
    """Who writes a table that is kept in order: `commits` so far."""

    commits: int

    @property
    def table(self) -> DeltaTable: ...

    def note_version(self) -> None:
        """The table was put in order."""


class LakeUpkeep:
    """Says when it is time, and does it. Once a day it is a whole round, otherwise files are merged."""

    def __init__(self, retention_days: int, slot: int | None = None) -> None:
        """Of the slots of a cluster, which have their tables together, the first one does it: two that merge the same
        files get in each other's way."""
        self._is_ours = not slot
        self._retention_days = retention_days
        self._last_ms: int | None = None
        self._last_day: date | None = None
        self._commits = 0
        self._thread: threading.Thread | None = None

    def look(self, lake: KeptTable, now_ms: int) -> None:
        """Every second: begin what is due; returns at once. Raises nothing of what the work meets."""
        if not self._is_ours:
            return
        if self._last_ms is None:
            self._last_ms = now_ms
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            lake.note_version()
        new = lake.commits - self._commits
        today = datetime.fromtimestamp(now_ms / 1000, UTC).date()
        has_waited = now_ms - self._last_ms >= EVERY_MS
        is_due = new >= NEW_FILES or (has_waited and (new > 0 or today != self._last_day))
        if not is_due:
            return
        self._last_ms, self._commits = now_ms, lake.commits
        whole = today if today != self._last_day else None
        self._thread = InheritableThread(
            target=closing_connection(self._work), args=(lake.table, whole), name="lake-upkeep", daemon=True
        )
        self._thread.start()

    def _work(self, table: DeltaTable, whole: date | None) -> None:
        try:
            with _ALONE:
                if whole is None:
                    log.info("files of the lake were merged: %s", table.merge())
                    return
                log.info("the lake is in order: %s", tidy(table, self._retention_days, whole))
            self._last_day = whole
        except Exception as error:  # whatever Spark threw: a later round tries again, and the query goes on
            log.warning("the lake was not put in order: %s", next(iter(str(error).splitlines()), repr(error)))
