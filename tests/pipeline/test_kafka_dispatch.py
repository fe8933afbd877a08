"""Dispatch on a real Kafka: real-time mode, micro-batches, what the embedded log gives, and what goes wrong."""

import os
import shutil
import signal
import struct
import threading

import pytest
from confluent_kafka import Message
from pyspark.sql import SparkSession
from tests.pipeline.conftest import PARTITIONS_MAX
from tests.pipeline.dispatching import Running, header, payloads, setup_of
from tests.pipeline.driver_process import START_S, DriverProcess
from tests.pipeline.kafka_topics import EveryLogWanted, LogInKafka
from tests.pipeline.log_writer import LogWriter, record
from tests.pipeline.queries import log_rows
from tests.support.kafka_server import KafkaServer
from tests.support.waiting import wait_until

from embermq.formats.log_record import Stamp
from embermq.pipeline.errors import LogBehindProgressError, PipelineError
from embermq.pipeline.jobs import kafka_dispatch
from embermq.pipeline.jobs.kafka_dispatch import KafkaDispatch, missing_log
from embermq.pipeline.places import Places
from embermq.pipeline.session import POOL
from embermq.pipeline.settings import QUERIES, DriverSettings, Mode
from embermq.pipeline.transforms.dispatch import application_entries

MODES: tuple[Mode, ...] = ("realtime", "microbatch")
HEALED_S = 30.0
SOON_S = 60.0
"""Are promised."""
REASON = "header f cannot be understood: none"


def entry_of(topic: str, message: Message) -> tuple[str, int, int, int, bytes]:
    """As the embedded log has it: (log, number, generation, flags, identifiers)."""
    log, generation, flags, identifiers = header(message, "a").split(";")
    assert log == topic
    numbers = [int(one) for one in identifiers.split(",") if one]
    return (
        topic,
        int(message.value() or b""),
        int(generation),
        int(flags),
        struct.pack(f">{len(numbers)}I", *numbers),
    )


@pytest.mark.promise("pipeline-6", "pipeline-3", "pipeline-4", "application-3")
def test_both_modes_and_the_embedded_log_give_the_same_application_logs(
    spark: SparkSession, log: LogWriter, places: Places, kafka_log: LogInKafka
) -> None:
    """One set of records gives the same entries in real-time mode, in micro-batches and by the embedded log."""
    billing, audit = kafka_log.log("billing"), kafka_log.log("audit")
    frames = [
        record(
            f"cars/{i % 7}",
            b"%d" % i,
            stamps=(Stamp(billing, 7, 1, i % 3 == 0, (i + 1, 70_000)),) * (i % 2)
            + (Stamp(audit, 9, 2),) * (i % 5 == 0),
        )
        for i in range(60)
    ]
    log.append(frames)
    kafka_log.append(frames[:30])
    kafka_log.append_raw(b"cars/0", b"broken", [("v", b"1.0"), ("f", b"none")])
    kafka_log.written -= 1
    kafka_log.append(frames[30:])
    entries = application_entries(log_rows(spark, places, 0, 60, "route")).where("log IS NOT NULL").collect()
    embedded = {(row.log, row.offset, row.generation, row.flags, bytes(row.identifiers)) for row in entries}
    assert len(embedded) == 42
    for mode in MODES:
        kafka_log.positions.publish("dispatch", dict.fromkeys(kafka_log.positions.bounds(), 0))
        before = {topic: kafka_log.count(topic) for topic in (billing, audit, kafka_log.kafka.rejected_topic)}
        with Running(spark, setup_of(kafka_log, places, mode)) as keeper:
            kafka_log.wait_for_progress("dispatch")
            assert keeper.report().mode == mode and keeper.report().restarts == 0
        found = {
            topic: [one for one in kafka_log.read(topic) if (one.offset() or 0) >= count]
            for topic, count in before.items()
        }
        (rejected,) = found.pop(kafka_log.kafka.rejected_topic)
        assert rejected.value() == b"broken" and header(rejected, "r") == REASON
        assert {entry_of(topic, one) for topic, ones in found.items() for one in ones} == embedded
        assert sum(map(len, found.values())) == len(embedded), "each once"
        for ones in found.values():
            for key in {one.key() for one in ones}:
                numbers = [int(one.value() or b"") for one in ones if one.key() == key]
                assert numbers == sorted(numbers), "the order of a topic is that of the log"


@pytest.mark.timeout(1_300)
@pytest.mark.in_faults
@pytest.mark.promise("pipeline-6")
def test_what_comes_after_a_rest_is_carried_at_once_and_once(
    spark: SparkSession, places: Places, kafka_log: LogInKafka
) -> None:
    """Within a batch that is long, since nothing came; then batches are short again. Neither is a failure."""
    log = kafka_log.log("rested")
    setup = setup_of(kafka_log, places, rest=(1.0, 60))
    with Running(spark, setup) as keeper:

        def has_batches_of(seconds: int) -> bool:
            return isinstance(keeper.job, KafkaDispatch) and keeper.job._batch_s == seconds

        wait_until(lambda: has_batches_of(setup.settings.rest_batch_s), START_S, "it rests", poll_s=0.1)
        kafka_log.append([record(payload=b"soon", stamps=(Stamp(log, 1, 1),))])
        wait_until(lambda: kafka_log.count(log) > 0, START_S, "it is there", poll_s=0.1)
        assert has_batches_of(setup.settings.rest_batch_s), "and its batch goes on"
        wait_until(lambda: has_batches_of(setup.settings.realtime_batch_s), START_S, "it ends", poll_s=0.1)
        kafka_log.wait_for_progress("dispatch")
        assert keeper.report().restarts == 0 and keeper.report().state == "running"
    assert payloads(kafka_log, log) == [b"soon"]


@pytest.mark.promise("pipeline-14", "application-2")
def test_a_record_for_a_log_that_is_missing_holds_nothing_up_for_long(
    spark: SparkSession, places: Places, kafka_log: LogInKafka
) -> None:
    """Of a session that is there the log is made again; what is stamped for one that is gone is rejected."""
    here, lost, gone = (f"{kafka_log.kafka.application_prefix}{name}" for name in ("here", "lost", "gone"))
    kafka_log.log("here")
    asked: list[str] = []

    class Sessions(EveryLogWanted):
        def restore(self, topic: str) -> int | None:
            asked.append(topic)
            return 7 if topic == gone else super().restore(topic)

    setup = setup_of(kafka_log, places, sessions=Sessions(kafka_log.positions))
    with Running(spark, setup) as keeper:
        kafka_log.append([record(payload=b"first", stamps=(Stamp(here, 1, 1),))])
        wait_until(lambda: kafka_log.count(here) == 1, START_S, "dispatch runs", poll_s=0.1)
        kafka_log.append([record(payload=b"lost", stamps=(Stamp(lost, 1, 1), Stamp(here, 1, 1)))])
        wait_until(
            lambda: kafka_log.count(lost) > 0, HEALED_S, "the log is there, and the record", poll_s=0.1
        )
        kafka_log.append([record(payload=b"gone", stamps=(Stamp(gone, 7, 1), Stamp(here, 1, 1)))])
        wait_until(lambda: b"gone" in payloads(kafka_log, here), HEALED_S, "dispatch goes on", poll_s=0.2)
        assert keeper.report().restarts == 2
        kafka_log.log("gone")  # of a new session with the same client id
        kafka_log.append([record(payload=b"new life", stamps=(Stamp(gone, 8, 1),))])
        wait_until(
            lambda: payloads(kafka_log, gone) == [b"new life"], START_S, "later ones arrive", poll_s=0.2
        )
        kafka_log.wait_for_progress("dispatch")
    assert asked == [lost, gone]
    assert set(payloads(kafka_log, here)) == {b"first", b"lost", b"gone"}
    rejected = {
        (bytes(one.value() or b""), header(one, "r"))
        for one in kafka_log.read(kafka_log.kafka.rejected_topic)
    }
    assert rejected == {(b"gone", f"the application log is gone: {gone}, generation 7")}


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-14")
def test_many_logs_that_are_missing_at_once_cost_no_restart_each(
    spark: SparkSession, places: Places, kafka_log: LogInKafka
) -> None:
    """Deleted while nobody looked. The broker makes all of them again when it is asked for one."""
    first = kafka_log.log("first")
    lost = [f"{kafka_log.kafka.application_prefix}lost{number}" for number in range(10)]

    class Sessions(EveryLogWanted):
        def restore(self, topic: str) -> int | None:
            there = kafka_log.positions.topics()
            for log in lost:
                if log not in there:
                    kafka_log.log(log.removeprefix(kafka_log.kafka.application_prefix))
            return super().restore(topic)

    setup = setup_of(kafka_log, places, sessions=Sessions(kafka_log.positions))
    with Running(spark, setup) as keeper:
        kafka_log.append([record(stamps=(Stamp(first, 1, 1),))])
        kafka_log.wait_for_progress("dispatch")
        kafka_log.append([record(f"t{at}", stamps=(Stamp(log, 1, 1),)) for at, log in enumerate(lost)])
        wait_until(
            lambda: all(kafka_log.count(log) for log in lost), SOON_S, "all are there and served", poll_s=0.2
        )
        kafka_log.wait_for_progress("dispatch")
        assert 1 <= keeper.report().restarts < 5, "not one for each"


@pytest.mark.promise("application-3", "application-11")
def test_a_clients_own_log_gets_everything_in_its_first_partition_however_many_it_has(
    spark: SparkSession, places: Places, kafka_log: LogInKafka
) -> None:
    own, shared = (f"{kafka_log.kafka.application_prefix}{name}" for name in ("own", "shared.of-three"))
    for topic in (own, shared):
        kafka_log.positions.ensure_topic(topic, 3)
    for mode in MODES:
        with Running(spark, setup_of(kafka_log, places, mode)) as keeper:
            stamps = (Stamp(own, 1, 1), Stamp(shared, 1, 1))
            kafka_log.append([record(f"r{i % 10}", b"%d" % i, stamps=stamps) for i in range(30)])
            kafka_log.wait_for_progress("dispatch")
            assert keeper.report().mode == mode
    assert [one.partition() for one in kafka_log.read(own)] == [0] * 60
    assert {one.partition() for one in kafka_log.read(shared)} == {0, 1, 2}


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-14")
def test_what_a_producer_holds_for_a_log_that_nobody_wants_any_more_is_rejected_by_the_next_run(
    spark: SparkSession, places: Places, kafka_log: LogInKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was there when dispatch began; without it a batch does not end."""
    monkeypatch.setattr(kafka_dispatch, "HELD_UP_S", 2.0)
    monkeypatch.setattr(kafka_dispatch, "PROGRESS_S", 0.5)
    gone = kafka_log.log("gone")

    class NoSessions(EveryLogWanted):
        def restore(self, topic: str) -> int | None:
            return 7

    setup = setup_of(kafka_log, places, sessions=NoSessions(kafka_log.positions))
    with Running(spark, setup):
        kafka_log.append([record(payload=b"first", stamps=(Stamp(gone, 7, 1),))])
        kafka_log.wait_for_progress("dispatch")
        kafka_log.delete(gone)
        kafka_log.append([record(payload=b"%d" % i, stamps=(Stamp(gone, 7, 1),)) for i in range(3)])
        kafka_log.wait_for_progress("dispatch", what="a later run has done it")
    rejected = kafka_log.read(kafka_log.kafka.rejected_topic)
    assert {bytes(one.value() or b"") for one in rejected} == {b"0", b"1", b"2"}


@pytest.mark.promise("application-3", "application-11", "pipeline-3")
def test_a_log_that_is_made_while_records_for_it_come_has_them_in_order(
    spark: SparkSession, places: Places, kafka_log: LogInKafka
) -> None:
    """A partition that has no leader yet refuses what comes; what comes after that must not get in first. The more
    partitions there are the longer they take, and the more of them get theirs between two requests."""
    shared = f"{kafka_log.kafka.application_prefix}shared.of-many"
    stamps = (Stamp(shared, 1, 2),)
    with Running(spark, setup_of(kafka_log, places, target_wait_ms=20_000)) as keeper:
        kafka_log.append([record(stamps=(Stamp(kafka_log.log("first"), 1, 1),))])
        kafka_log.wait_for_progress("dispatch")
        kafka_log.append([record(f"r{i % 500}", b"%d" % i, stamps=stamps) for i in range(5_000)])
        kafka_log.make(shared, partitions=200)
        kafka_log.wait_for_progress("dispatch")
        assert keeper.report().restarts == 0
    found = kafka_log.read(shared)
    assert len(found) == 5_000
    for key in {one.key() for one in found}:
        numbers = [int(one.value() or b"") for one in found if one.key() == key]
        assert numbers == sorted(numbers)


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2", "pipeline-3")
def test_kill_9_of_the_driver_under_load_loses_nothing_and_repeats_are_known_by_their_position(
    places: Places, kafka_log: LogInKafka, drivers: list[DriverProcess]
) -> None:
    billing = kafka_log.log("billing")
    settings = DriverSettings(queries=("dispatch",), kafka=kafka_log.kafka, target_wait_ms=2_000)
    numbers = iter(range(1_000_000))
    stopping = threading.Event()

    def load() -> None:
        while not stopping.wait(0.02):
            for i in (next(numbers) for _ in range(10)):
                kafka_log.append([record(f"r{i % 5}", b"%d" % i, stamps=(Stamp(billing, 7, 1),))])

    writer = threading.Thread(target=load)
    writer.start()
    try:
        first = DriverProcess(places, settings)
        drivers.append(first)
        wait_until(lambda: kafka_log.count(billing) > 300, START_S, "dispatch runs", poll_s=0.1)
        os.kill(first.process.pid, signal.SIGKILL)
        wait_until(first.is_gone, START_S, "the JVM goes with the driver", poll_s=0.05)
        shutil.rmtree(places.checkpoints, ignore_errors=True)
        killed_at = kafka_log.count(billing)
        drivers.append(DriverProcess(places, settings))
        wait_until(lambda: kafka_log.count(billing) > killed_at, START_S, "dispatch runs again", poll_s=0.1)
    finally:
        stopping.set()
        writer.join()
    kafka_log.wait_for_progress("dispatch")
    by_position: dict[str, str] = {}
    newest: dict[object, int] = {}
    for one in kafka_log.read(billing):
        number, position = (one.value() or b"").decode(), header(one, "s")
        assert by_position.setdefault(position, number) == number
        if int(number) > newest.get(one.key(), -1):
            newest[one.key()] = int(number)
        else:
            assert (one.offset() or 0) >= killed_at, "nothing is repeated but by the kill"
    assert sorted(map(int, by_position.values())) == list(range(kafka_log.written))


def test_a_log_of_another_life_is_not_read_as_if_it_were_this_one(
    spark: SparkSession, places: Places, kafka_log: LogInKafka
) -> None:
    last = max(kafka_log.positions.bounds())
    kafka_log.positions.publish("dispatch", {last: 5})
    with pytest.raises(LogBehindProgressError, match=f"partition {last}, ends at 0, before 5"):
        KafkaDispatch.create(setup_of(kafka_log, places)).start(spark)


def test_too_few_task_slots_are_said_before_partitions_fall_silent(
    spark: SparkSession, places: Places, kafka: KafkaServer
) -> None:
    many = LogInKafka(kafka.bootstrap, kafka.prefix(), partitions=spark.sparkContext.defaultParallelism)
    with pytest.raises(PipelineError, match="needs a task slot for each of the"):
        KafkaDispatch.create(setup_of(many, places)).start(spark)


def test_a_slot_for_each_query_and_partition_and_the_next_free_one_is_for_dispatch(
    spark: SparkSession,
) -> None:
    """With fewer, a batch of dispatch would wait for the archive's and the lake's tasks, and its clients with it."""
    context = spark.sparkContext
    assert context.defaultParallelism >= len(QUERIES) * PARTITIONS_MAX + 1
    first, bulk = (context._jsc.sc().getPoolForName(name).get() for name in ("dispatch", POOL))
    assert first.minShare() == PARTITIONS_MAX
    assert first.weight() > 100 * bulk.weight() and not bulk.minShare()


@pytest.mark.promise("pipeline-14")
def test_a_query_that_dies_of_a_log_which_is_there_again_by_then_need_not_wait(
    places: Places, kafka_log: LogInKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_dispatch, "PROGRESS_S", 0.0)
    lost = kafka_log.log("lost")
    job = KafkaDispatch.create(setup_of(kafka_log, places))
    job.upkeep(0)
    kafka_log.delete(lost)

    def is_there_again() -> bool:
        job.upkeep(0)
        return job.heal(f"Topic {lost} not present in metadata after 5 ms.")

    wait_until(is_there_again, HEALED_S, "the log is made again, and that is remembered", poll_s=0.2)
    assert lost in kafka_log.positions.topics()
    monkeypatch.setattr(kafka_dispatch, "RESTORED_S", 0.0)
    assert not job.heal(f"Topic {lost} not present in metadata after 5 ms."), "that is long ago"


def test_what_kafka_said_names_the_log_that_is_missing() -> None:
    assert missing_log(
        "x TimeoutException: Topic e.msg.app.a.b not present in metadata after 5 ms.", "e.msg.app."
    ) == ("e.msg.app.a.b")
    assert missing_log("Topic e.msg.rejected not present in metadata after 5 ms.", "e.msg.app.") is None
    assert missing_log("out of memory", "e.msg.app.") is None
