"""The jobs as the streaming queries that they are."""

import shutil

import pytest
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.pipeline.queries import DEADLINE_S, rows_of, running, wait_for_position
from tests.support.waiting import wait_until

from embermq.formats.log_record import Stamp
from embermq.pipeline.errors import LogBehindProgressError
from embermq.pipeline.jobs.dispatch import Dispatch
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sources.message_log import PROBE_OFFSET

STAMP = (Stamp("billing", 7, 1),)
QUICK = DriverSettings(
    dispatch_trigger_ms=0,
    dispatch_rest_ms=0,
    idle_wait_ms=100,
    backoff_first_ms=1,
    max_records_per_batch=7,
    split_records=3,
)


class Recorded(Dispatch):
    """Keeps the size of every batch."""

    def __init__(self, settings: DriverSettings, places: Places) -> None:
        super().__init__(settings, places)
        self.sizes: list[int] = []
        self._write = self._sink.write
        self._sink.write = self._noted  # type: ignore[method-assign]

    def _noted(self, entries: DataFrame) -> int:
        records = self._write(entries)
        self.sizes.append(records)
        return records


def dispatched(places: Places) -> list[object]:
    return [row[0] for row in rows_of(places.applications, 'SELECT "offset" FROM application_log ORDER BY 1')]


@pytest.mark.promise("pipeline-7", "pipeline-1")
def test_a_backlog_drains_in_bounded_batches_and_the_query_follows_the_log(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    log.append([record(stamps=STAMP)] * 20)
    job = Recorded(QUICK, places)
    with running(spark, job) as query:
        wait_for_position(job, query, 20)
        log.append([record(stamps=STAMP)] * 3)
        wait_for_position(job, query, 23)
    assert max(job.sizes) <= 7 and sum(job.sizes) == 23
    assert dispatched(places) == list(range(23))


@pytest.mark.promise("pipeline-2")
def test_a_lost_checkpoint_costs_nothing_and_repeats_nothing(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    log.append([record(stamps=STAMP)] * 10)
    job = Dispatch(QUICK, places)
    with running(spark, job) as query:
        wait_for_position(job, query, 10)
    shutil.rmtree(places.checkpoints)
    log.append([record(stamps=STAMP)] * 4)
    again = Recorded(QUICK, places)
    with running(spark, again) as query:
        wait_for_position(again, query, 14)
    assert sum(again.sizes) == 4 and dispatched(places) == list(range(14))


@pytest.mark.promise("pipeline-4")
def test_what_was_trimmed_while_nobody_was_owed_anything_is_not_missing(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    for _ in range(4):
        log.append([record(stamps=STAMP)] * 5)
    job = Dispatch(replace(QUICK, has_waited=True), places)
    job.file.begin_at(3)
    log.trim_below(10)
    with running(spark, job) as query:
        wait_for_position(job, query, 20)
        assert "missing" not in job.file.counts()
    assert dispatched(places) == list(range(10, 20))


@pytest.mark.promise("pipeline-4")
def test_a_later_start_counts_what_it_missed(log: LogWriter, places: Places) -> None:
    """At the first one nobody was owed anything; from then on somebody is."""
    for _ in range(4):
        log.append([record(stamps=STAMP)] * 5)
    job = Dispatch(replace(QUICK, has_waited=True), places)
    job.file.begin_at(3)
    log.trim_below(5)
    assert job.first_offset() == 5
    log.trim_below(10)
    assert job.first_offset() == 5, "where it begins again, whatever is missing there"


@pytest.mark.promise("pipeline-5", "pipeline-4")
def test_records_that_were_trimmed_unread_are_counted_and_the_query_goes_on(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    for _ in range(4):
        log.append([record(stamps=STAMP)] * 5)
    job = Dispatch(QUICK, places)
    job.file.begin_at(3)
    log.trim_below(10)
    with running(spark, job) as query:
        wait_for_position(job, query, 20)
        assert job.file.counts() == {"records": 17, "entries": 10, "missing": 7}
    assert dispatched(places) == list(range(10, 20))


@pytest.mark.promise("pipeline-2")
def test_a_log_of_another_life_is_not_read_as_if_it_went_on(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    log.append([record()] * 3)
    job = Dispatch(QUICK, places)
    job.file.begin_at(10)
    with pytest.raises(LogBehindProgressError, match="ends 7 records before"):
        job.start(spark)
    job.file.close()


@pytest.mark.promise("pipeline-14")
def test_a_query_has_begun_when_a_probe_has_come_through_and_the_probe_has_no_effect(
    spark: SparkSession,
    log: LogWriter,
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With nothing in the log; what comes then is the query's first effect."""
    job = Dispatch(QUICK, places)
    came: list[object] = []
    write = job._sink.write

    def noted(rows: DataFrame) -> int:
        came.append([row[0] for row in rows.select("offset").collect()])
        return write(rows)

    monkeypatch.setattr(job._sink, "write", noted)
    with running(spark, job) as query:
        assert not job.has_begun(query)
        wait_until(lambda: job.has_begun(query) or query.exception() is not None, DEADLINE_S, poll_s=0.1)
        assert query.exception() is None and came[0] == [PROBE_OFFSET]
        assert (job.file.position(), job.file.counts(), job.last_batch) == (0, {}, None)
        log.append([record(stamps=STAMP, accepted_ms=NOON_MS)])
        wait_for_position(job, query, 1)
        counted = job.file.counts()
        assert (counted["records"], counted["entries"]) == (1, 1)
