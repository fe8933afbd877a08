"""archive, lake and traffic on the embedded log: one read for all, and each for itself where it has to be."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from tests.pipeline.feeding import AT_ONCE, DEADLINE_S, feeding
from tests.pipeline.lake import offsets_in
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.pipeline.queries import rows_of
from tests.pipeline.test_sinks import receipts
from tests.support.waiting import wait_until

from embermq.pipeline.jobs import bulk
from embermq.pipeline.jobs.bulk_log import BulkBatch, EmbeddedLog
from embermq.pipeline.jobs.bulk_parts import Archive, LakeFeed, Traffic
from embermq.pipeline.paused import pause_queries, resume_query
from embermq.pipeline.places import Places
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.sinks.message_file import MessageFile

FAR_MS = 3_600_000
LATENCY = "SELECT deliveries, p50_us, p95_us, p99_us, max_us FROM latency_window"


def stored(places: Places) -> list[object]:
    return [row[0] for row in rows_of(places.messages, 'SELECT "offset" FROM message ORDER BY 1')]


def counted(places: Places) -> object:
    return rows_of(places.traffic, "SELECT SUM(messages) + SUM(late) FROM traffic_window")[0][0]


@pytest.mark.promise("pipeline-1", "pipeline-2", "pipeline-7", "pipeline-9", "pipeline-10")
@pytest.mark.promise("pipeline-13", "pipeline-14")
def test_the_log_is_read_once_for_all_in_bounded_batches(
    spark: SparkSession, log: LogWriter, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Archive, lake and traffic get each record once from one reading; latencies are those of the receipts."""
    monkeypatch.setattr(bulk, "PATIENCE_S", DEADLINE_S)
    log.add_receipts(receipts(NOON_MS, range(1_000, 101_000, 1_000)))
    log.add_receipts(b"torn")
    with feeding(spark, places) as loop:
        loop.wait_for_state("running")
        assert loop.read == [()] * 3, "the probe once each, and nothing while there is nothing"
        parts = [feed.part for feed in loop.feeds if feed.part is not None]
        assert [part.counts() for part in parts] == [{}] * 3
        for feed in loop.feeds:
            assert (feed.positions, feed.report().last_batch_at_ms) == ({PARTITION: 0}, 0)
        log.append([record(accepted_ms=NOON_MS)] * 20)
        loop.wait_for_position(20)
        assert sorted(filter(None, loop.read)) == [(0, 7), (7, 14), (14, 20)]
        log.add_receipts(receipts(NOON_MS, range(1_000, 101_000, 1_000)))
        wait_until(lambda: (rows_of(places.traffic, LATENCY) or [(0,)])[0][0] == 200, DEADLINE_S, "latency")
        log.append([record(accepted_ms=NOON_MS)] * 3)
        loop.wait_for_position(23)
        wait_until(lambda: loop.report("lake").last_batch_records == 3, DEADLINE_S, "the batch is reported")
        assert sorted(filter(None, loop.read))[3:] == [(20, 23)]
        found = [part.counts() for part in parts]
        assert [(counts["records"], counts["entries"]) for counts in found] == [(23, 23)] * 3
    everything = list(range(23))
    assert stored(places) == offsets_in(places) == everything and counted(places) == 23
    ((_, p50, p95, p99, largest),) = rows_of(places.traffic, LATENCY)
    assert p50 == pytest.approx(50_000, rel=0.05) and p95 == pytest.approx(95_000, rel=0.05)
    assert p99 == pytest.approx(99_000, rel=0.05) and largest == 100_000
    assert rows_of(places.traffic, "SELECT value FROM traffic_state WHERE name = 'receipts_next'") == [(4,)]


@pytest.mark.promise("pipeline-7")
def test_a_batch_waits_for_its_time_unless_it_is_full(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    with feeding(spark, places, replace(AT_ONCE, bulk_trigger_ms=FAR_MS), [Archive]) as loop:
        log.append([record(accepted_ms=NOON_MS)] * 3)
        loop.wait_for_position(3)
        log.append([record(accepted_ms=NOON_MS)] * 6)
        log.append([record(accepted_ms=NOON_MS)] * 4)
        loop.wait_for_position(10)
        assert loop.read == [(), (0, 3), (3, 10)], "the other three wait"


class Failing(Archive):
    """Fails on its first batches, as with a full disk."""

    failures: ClassVar[list[str]] = []

    def write(self, batch: BulkBatch) -> int:
        if self.positions() == {PARTITION: 7} and self.failures:
            raise OSError(self.failures.pop())
        return super().write(batch)


@pytest.mark.promise("pipeline-2", "pipeline-14", "pipeline-13")
def test_one_that_fails_catches_up_by_itself_and_the_others_go_on(
    spark: SparkSession, log: LogWriter, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk stops one of three; when there is room it catches up, and all read together again."""
    monkeypatch.setattr(bulk, "PATIENCE_S", DEADLINE_S)
    monkeypatch.setattr(Failing, "failures", ["no space left on device"] * 1_000)
    log.append([record(accepted_ms=NOON_MS)] * 20)
    with feeding(spark, places, kinds=[Failing, LakeFeed, Traffic]) as loop:
        loop.wait_for_position(20, "lake", "traffic")
        loop.wait_for_state("backoff", "archive")
        found = loop.report("archive")
        assert "no space left on device" in found.last_error and found.restarts
        assert loop.report("lake").restarts == loop.report("traffic").restarts == 0
        Failing.failures.clear()
        loop.wait_for_position(20)
        loop.wait_for_state("running")
        log.append([record(accepted_ms=NOON_MS)] * 3)
        loop.wait_for_position(23)
        assert loop.read[-1] == (20, 23) and loop.read.count((20, 23)) == 1, "they read together again"
    assert stored(places) == offsets_in(places) == list(range(23)) and counted(places) == 23


class Slow(Archive):
    """A server that answers when it is let."""

    may_go: ClassVar[threading.Event]

    def write(self, batch: BulkBatch) -> int:
        if self.positions() == {PARTITION: 7}:
            self.may_go.wait(DEADLINE_S)
        return super().write(batch)


@pytest.mark.promise("pipeline-14")
def test_one_that_takes_too_long_is_not_waited_for(
    spark: SparkSession, log: LogWriter, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not answer holds up its own query alone, which catches up."""
    monkeypatch.setattr(bulk, "PATIENCE_S", 0.2)
    monkeypatch.setattr(Slow, "may_go", threading.Event(), raising=False)
    log.append([record(accepted_ms=NOON_MS)] * 21)
    with feeding(spark, places, kinds=[Slow, LakeFeed, Traffic]) as loop:
        loop.wait_for_position(21, "lake", "traffic")  # a batch beyond the one that all of them were given
        assert stored(places) == list(range(7))
        Slow.may_go.set()
        loop.wait_for_position(21)
    assert stored(places) == offsets_in(places) == list(range(21)) and counted(places) == 21


@pytest.mark.promise("pipeline-14")
def test_a_damaged_sink_and_a_log_of_another_life_stop_nobody_else(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    log.append([record(accepted_ms=NOON_MS)] * 3)
    places.traffic.write_bytes(b"not a database" * 100)
    MessageFile(places.messages).begin_at(10)
    with feeding(spark, places) as loop:
        loop.wait_for_position(3, "lake")
        wait_until(lambda: loop.report("archive").restarts >= 2, DEADLINE_S, "tried again", poll_s=0.05)
        wait_until(lambda: loop.report("traffic").restarts >= 2, DEADLINE_S, "tried again", poll_s=0.05)
        assert "ends 7 records before" in loop.report("archive").last_error
        assert "not a database" in loop.report("traffic").last_error
        assert loop.report("lake").state == "running"


@pytest.mark.promise("pipeline-5")
def test_a_paused_one_stands_still_and_comes_back(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    pause_queries(places.data_dir, ["lake"])
    log.append([record(accepted_ms=NOON_MS)] * 3)
    with feeding(spark, places) as loop:
        loop.wait_for_position(3, "archive", "traffic")
        loop.wait_for_state("paused", "lake")
        resume_query(places.data_dir, "lake")
        loop.wait_for_position(3)
    assert offsets_in(places) == [0, 1, 2]


@pytest.mark.promise("pipeline-4")
def test_what_was_trimmed_unread_is_counted_by_each(
    spark: SparkSession, log: LogWriter, places: Places
) -> None:
    for _ in range(4):
        log.append([record(accepted_ms=NOON_MS)] * 5)
    for kind in (Archive, Traffic):
        kind(AT_ONCE, places, EmbeddedLog(AT_ONCE, places, spark)).begin_at({PARTITION: 3})
    log.trim_below(10)
    with feeding(spark, places, kinds=[Archive, Traffic]) as loop:
        loop.wait_for_position(20)
        for feed in loop.feeds:
            assert feed.part is not None
            found = feed.part.counts()
            assert (found["records"], found["entries"], found["missing"]) == (17, 10, 7)
