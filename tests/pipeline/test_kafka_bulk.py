"""archive, lake and traffic on a log in Kafka: one read for all, and each for itself where it has to be."""

from __future__ import annotations

import time
from typing import ClassVar

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from msgspec.structs import replace
from pyspark.sql import SparkSession
from tests.pipeline.feeding import AT_ONCE, DEADLINE_S, feeding_of_kafka
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.lake import rows_in
from tests.pipeline.log_writer import record
from tests.pipeline.queries import rows_of
from tests.support.waiting import wait_until

from embermq.formats.kafka_record import KafkaEncoder
from embermq.formats.log_record import slot_field
from embermq.pipeline.jobs import bulk
from embermq.pipeline.jobs.bulk_log import BulkBatch
from embermq.pipeline.jobs.bulk_parts import Archive, LakeFeed, Traffic
from embermq.pipeline.paused import pause_queries, resume_query
from embermq.pipeline.places import Places

SETTINGS = replace(AT_ONCE, max_records_per_batch=20)
PLACES = 'SELECT "partition", "offset" FROM kafka_message ORDER BY 1, 2'
COUNTED = "SELECT SUM(messages) + SUM(late) FROM traffic_window"


def append(log: LogInKafka, count: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    log.append(record(f"r{i % 7}/x", b"%d" % i, accepted_ms=now_ms) for i in range(count))


def everything(log: LogInKafka, first: dict[int, int]) -> list[tuple[int, int]]:
    return [(number, at) for number, end in log.ends().items() for at in range(first.get(number, 0), end)]


class Failing(Archive):
    """Writes some of what it is given, and fails then, as when a server goes in the middle of a batch."""

    failures: ClassVar[list[str]] = []

    def write(self, batch: BulkBatch) -> int:
        if self.failures and self.counts():
            super().write(BulkBatch(batch.rows.where("partition = 0")))
            raise OSError(self.failures[0])
        return super().write(batch)


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2", "pipeline-3", "pipeline-7", "pipeline-10", "pipeline-14")
def test_each_partition_is_read_once_for_all_and_those_that_were_apart_join(
    spark: SparkSession, kafka_log: LogInKafka, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over one that fails in the middle of batches and one that is paused, removed records, records that Kafka shows to
    nobody, and a partition that comes meanwhile."""
    log = kafka_log
    monkeypatch.setattr(bulk, "PATIENCE_S", DEADLINE_S)
    monkeypatch.setattr(Failing, "failures", [])
    kinds = [Failing, LakeFeed, Traffic]
    append(log, 50)
    with feeding_of_kafka(spark, log, places, SETTINGS, kinds) as loop:
        loop.wait_for_positions(log.ends())
        read = [(number, at) for batch in loop.read for number, (a, b) in batch.items() for at in range(a, b)]
        assert sorted(read) == everything(log, {}), "each once for all three"
        assert all(sum(b - a for a, b in batch.values()) <= 21 for batch in loop.read), "bounded"
        assert all(feed.done == log.ends() for feed in loop.feeds)
        assert loop.report("lake").last_batch_records

        Failing.failures.append("no space left on device")
        pause_queries(places.data_dir, ["lake"])
        loop.wait_for_state("paused", "lake")
        append(log, 50)
        loop.wait_for_positions(log.ends(), "traffic")
        loop.wait_for_state("backoff", "archive")
        assert "no space left" in loop.report("archive").last_error
        assert loop.report("traffic").restarts == loop.report("lake").restarts == 0
        assert loop.feed("archive").done != loop.feed("traffic").done
        Failing.failures.clear()
        resume_query(places.data_dir, "lake")
        loop.wait_for_positions(log.ends())
        loop.wait_for_state("running")

        transaction = Producer(
            {"bootstrap.servers": log.kafka.bootstrap, "transactional.id": log.kafka.prefix}
        )
        transaction.init_transactions()
        transaction.begin_transaction()
        transaction.produce(log.kafka.log_topic, b"", b"r0/x", partition=0, headers=[("v", b"9.0")])
        transaction.commit_transaction()
        loop.wait_for_positions(log.ends())
        at_rest = len(loop.read)
        admin = AdminClient({"bootstrap.servers": log.kafka.bootstrap})
        admin.create_partitions([NewPartitions(log.kafka.log_topic, 3)])[log.kafka.log_topic].result(
            DEADLINE_S
        )
        added = Producer({"bootstrap.servers": log.kafka.bootstrap})
        added.produce(log.kafka.log_topic, b"", b"r0/x", partition=2, headers=[("v", b"9.0")])
        assert not added.flush(DEADLINE_S)
        wait_until(lambda: 2 in loop.feed("lake").positions, DEADLINE_S, "the partition is seen", poll_s=0.05)
        loop.wait_for_positions(log.ends())
        assert loop.read[at_rest:] == [{2: (0, 1)}], "once for all, and nothing behind which is no record"
    good = everything(log, {})
    for position in ((0, log.ends()[0] - 2), (0, log.ends()[0] - 1), (2, 0)):
        good.remove(position)
    assert rows_of(places.messages, PLACES) == good
    assert sorted(rows_in(places, "partition", "offset")) == good
    assert rows_of(places.traffic, COUNTED) == [(len(good),)]
    for feed in loop.feeds:
        assert (feed.totals["entries"], feed.totals["rejected"], feed.missing) == (len(good), 2, 0)


@pytest.mark.in_faults
@pytest.mark.promise("cluster-21", "pipeline-2", "pipeline-13")
def test_copies_and_ends_of_transactions_move_positions_and_count_as_nothing(
    spark: SparkSession, kafka_log: LogInKafka, places: Places
) -> None:
    """A record of another slot is counted there. A log with such copies alone at its end has been read to its end."""
    log = kafka_log
    log.positions.kafka = replace(log.kafka, slot=0)
    now_ms = time.time_ns() // 1_000_000
    append(log, 20)
    transaction = Producer({"bootstrap.servers": log.kafka.bootstrap, "transactional.id": log.kafka.prefix})
    transaction.init_transactions()
    transaction.begin_transaction()
    for number in log.ends():
        made = KafkaEncoder().encode(record("r0/x", b"committed", accepted_ms=now_ms))
        transaction.produce(log.kafka.log_topic, made.value, made.key, number, headers=list(made.headers))
    transaction.commit_transaction()
    append(log, 20)
    good = {(message.partition(), message.offset()) for message in log.read(log.kafka.log_topic, shown=42)}
    copies = (
        record(f"r{i % 7}/x", accepted_ms=now_ms, unknown_fields=(slot_field(1, i),)) for i in range(20)
    )
    log.append(copies)
    settings = replace(AT_ONCE, max_records_per_batch=1_000)
    with feeding_of_kafka(spark, log, places, settings, [Archive, Traffic]) as loop:
        loop.wait_for_positions(log.ends())
        for feed in loop.feeds:
            assert feed.part is not None and feed.part.positions() == log.ends(), "nothing to be missed later"
    assert set(rows_of(places.messages, PLACES)) == good
    assert rows_of(places.traffic, COUNTED) == [(len(good),)] == [(42,)]
    for feed in loop.feeds:
        counted = {what: feed.totals.get(what, 0) for what in ("records", "entries", "rejected", "missing")}
        assert counted == {"records": 42, "entries": 42, "rejected": 0, "missing": 0}, feed.name


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-4", "pipeline-13")
def test_what_was_removed_unread_is_counted_and_passed_over(
    spark: SparkSession, kafka_log: LogInKafka, places: Places
) -> None:
    log = kafka_log
    append(log, 30)
    with feeding_of_kafka(spark, log, places, SETTINGS, [Archive, Traffic]) as loop:
        loop.wait_for_positions(log.ends())
    first = log.ends()
    append(log, 40)
    removed = {number: at + 5 for number, at in first.items()}
    log.trim(removed)
    with feeding_of_kafka(spark, log, places, SETTINGS, [Archive, Traffic]) as loop:
        loop.wait_for_positions(log.ends())
        assert [feed.missing for feed in loop.feeds] == [10, 10]
        wait_until(lambda: all(feed.done == log.ends() for feed in loop.feeds), 60, "all is done")
    good = [(number, at) for number, at in everything(log, {}) if at < first[number] or at >= removed[number]]
    assert rows_of(places.messages, PLACES) == good
    assert rows_of(places.traffic, COUNTED) == [(len(good),)]
