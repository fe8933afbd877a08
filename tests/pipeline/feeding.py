"""Running archive, lake and traffic in tests as they run: one loop over the embedded log."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from tests.support.waiting import wait_until

from embermq.pipeline.jobs.bulk import POOL, Bulk
from embermq.pipeline.jobs.bulk_parts import PARTS, BulkPart
from embermq.pipeline.jobs.query_job import JobSetup
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.status import QueryReport
from embermq.pipeline.turns import Turns

DEADLINE_S = 120
AT_ONCE = DriverSettings(
    bulk_trigger_ms=0,
    idle_wait_ms=20,
    backoff_first_ms=1,
    max_records_per_batch=7,
    split_records=3,
    retention_hours=1_000_000,
)
"""Nothing is too old."""


class RecordedBulk(Bulk):
    """Keeps what was read of the log; the probe is ()."""

    read: list[tuple[int, ...]]

    def _read(self, **options: str) -> DataFrame:
        self.read.append(() if "probe" in options else (int(options["start"]), int(options["end"])))
        return super()._read(**options)

    def report(self, name: str) -> QueryReport:
        return next(feed.report() for feed in self.feeds if feed.name == name)

    def wait_for_position(self, end: int, *names: str) -> None:
        """Until these, or all, have confirmed everything below `end` and are at rest."""

        def has_arrived() -> bool:
            chosen = [feed for feed in self.feeds if feed.name in names or not names]
            return all(feed.has_begun and feed.position >= end for feed in chosen)

        wait_until(has_arrived, DEADLINE_S, f"{names or 'all'} at {end}", poll_s=0.05)

    def wait_for_state(self, state: str, *names: str) -> None:
        wait_until(
            lambda: (
                {feed.report().state for feed in self.feeds if feed.name in names or not names} == {state}
            ),
            DEADLINE_S,
            f"{names or 'all'} {state}",
            poll_s=0.02,
        )


@contextmanager
def feeding(
    spark: SparkSession,
    places: Places,
    settings: DriverSettings = AT_ONCE,
    kinds: Sequence[type[BulkPart]] = PARTS,
) -> Iterator[RecordedBulk]:
    """The loop, stopped at the end."""
    stopping = threading.Event()
    bulk = RecordedBulk(kinds, JobSetup(settings, places), spark, stopping, Turns([POOL]))
    bulk.read = []
    bulk.start()
    try:
        yield bulk
    finally:
        stopping.set()
        bulk.join()
