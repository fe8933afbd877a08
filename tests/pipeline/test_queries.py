"""The jobs as the streaming queries that they are."""

import logging
import shutil
import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.lake import offsets_in
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.pipeline.queries import DEADLINE_S, rows_of, running, wait_for_position
from tests.pipeline.test_sinks import receipts
from tests.support.waiting import wait_until

from embermq.formats.log_record import Stamp
from embermq.pipeline.errors import LogBehindProgressError
from embermq.pipeline.jobs.archive import Archive
from embermq.pipeline.jobs.dispatch import Dispatch
from embermq.pipeline.jobs.lake import LakeFeed
from embermq.pipeline.jobs.query_job import JobSetup
from embermq.pipeline.jobs.stream_job import StreamJob
from embermq.pipeline.jobs.traffic import Traffic
from embermq.pipeline.keeper import Keeper
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sources.probe import PROBE_OFFSET
from embermq.pipeline.turns import Turns

STAMP = (Stamp("billing", 7, 1),)
QUICK = DriverSettings(
    archive_trigger_ms=0,
    lake_trigger_ms=0,
    traffic_trigger_ms=0,
    dispatch_trigger_ms=0,
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

    def write(self, rows: DataFrame) -> int:
        records = super().write(rows)
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


@pytest.mark.promise("pipeline-2", "pipeline-10", "pipeline-9")
def test_lake_and_traffic_as_queries(spark: SparkSession, log: LogWriter, places: Places) -> None:
    log.append([record(accepted_ms=NOON_MS) for _ in range(10)])
    log.add_receipts(receipts(NOON_MS, range(1_000, 101_000, 1_000)))
    log.add_receipts(b"torn")
    lake, traffic = LakeFeed(QUICK, places), Traffic(QUICK, places)
    with running(spark, lake) as filling, running(spark, traffic) as counting:
        wait_for_position(lake, filling, 10)
        wait_for_position(traffic, counting, 10)
        log.add_receipts(receipts(NOON_MS, range(1_000, 101_000, 1_000)))
        log.append([record(accepted_ms=NOON_MS)])
        wait_for_position(lake, filling, 11)
        wait_for_position(traffic, counting, 11)
        latency = "SELECT deliveries, p50_us, p95_us, p99_us, max_us FROM latency_window"
        wait_until(lambda: (rows_of(places.traffic, latency) or [(0,)])[0][0] == 200, DEADLINE_S, "latency")
    assert offsets_in(places) == list(range(11))
    ((_, p50, p95, p99, largest),) = rows_of(places.traffic, latency)
    assert p50 == pytest.approx(50_000, rel=0.05) and p95 == pytest.approx(95_000, rel=0.05)
    assert p99 == pytest.approx(99_000, rel=0.05) and largest == 100_000
    assert rows_of(places.traffic, "SELECT SUM(messages) FROM traffic_window") == [(11,)]
    assert rows_of(places.traffic, "SELECT value FROM traffic_state WHERE name = 'receipts_next'") == [(4,)]


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


class Failing(Archive):
    """Fails on its first batches, as with a full disk."""

    def __init__(self, settings: DriverSettings, places: Places) -> None:
        super().__init__(settings, places)
        self.failures_left = 2

    def write(self, rows: DataFrame) -> int:
        if self.failures_left:
            self.failures_left -= 1
            raise OSError("no space left on device")
        return super().write(rows)


def is_done(keeper: Keeper) -> bool:
    return keeper.job is not None and not keeper.job.lag() and keeper.report().state == "running"


@pytest.fixture
def stopping() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.promise("pipeline-14", "pipeline-13")
def test_a_query_that_dies_starts_again_and_the_others_go_on(
    spark: SparkSession,
    log: LogWriter,
    places: Places,
    stopping: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "py4j")
    caplog.set_level(logging.WARNING, "embermq.pipeline.keeper")
    log.append([record(stamps=STAMP)] * 5)
    places.traffic.write_bytes(b"not a database" * 100)
    setup = JobSetup(QUICK, places)
    turns = Turns(["dispatch", "archive", "traffic"])
    failed, healthy, broken = keepers = [
        Keeper(kind, setup, spark, stopping, turns) for kind in (Failing, Dispatch, Traffic)
    ]
    for keeper in keepers:
        keeper.start()
    wait_until(lambda: is_done(failed) and is_done(healthy), DEADLINE_S, "all read, and running", poll_s=0.1)
    # Spark gives up a worker that has not come within 10 s: on a busy machine that is one more.
    assert failed.report().restarts >= 2
    assert isinstance(failed.job, Failing) and failed.job.failures_left == 0
    assert "no space left on device" in caplog.text
    # What a batch did is noted when its effect is there.
    wait_until(lambda: healthy.report().last_batch_records == 5, DEADLINE_S, "the batch is reported")
    assert healthy.report().restarts == 0
    wait_until(lambda: broken.report().restarts >= 2, DEADLINE_S, "tried again", poll_s=0.1)
    assert "not a database" in broken.report().last_error
    stopping.set()
    for query in spark.streams.active:
        query.stop()
    stored = rows_of(places.messages, "SELECT total FROM counted WHERE what = 'entries'")
    assert stored == [(5,)], "once, though its batch was tried three times"


@pytest.mark.promise("pipeline-14")
@pytest.mark.parametrize("kind", [Dispatch, Archive, LakeFeed, Traffic])
def test_a_query_has_begun_when_a_probe_has_come_through_and_the_probe_has_no_effect(
    kind: type[StreamJob],
    spark: SparkSession,
    log: LogWriter,
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With nothing in the log; what comes then is the query's first effect."""
    job = kind(QUICK, places)
    came: list[object] = []
    write = job.write

    def noted(rows: DataFrame) -> int:
        came.append([row[0] for row in rows.select("offset").collect()])
        return write(rows)

    monkeypatch.setattr(job, "write", noted)
    with running(spark, job) as query:
        assert not job.has_begun(query)
        wait_until(lambda: job.has_begun(query) or query.exception() is not None, DEADLINE_S, poll_s=0.1)
        assert query.exception() is None and came[0] == [PROBE_OFFSET]
        assert (job.file.position(), job.file.counts(), job.last_batch) == (0, {}, None)
        log.append([record(stamps=STAMP, accepted_ms=NOON_MS)])
        wait_for_position(job, query, 1)
        counted = job.file.counts()
        assert (counted["records"], counted["entries"]) == (1, 1)
