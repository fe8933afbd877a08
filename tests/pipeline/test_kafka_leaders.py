"""Dispatch on a cluster of Kafka where an application log has lost its server."""

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession
from tests.pipeline.dispatching import Running, header, setup_of
from tests.pipeline.driver_process import START_S
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.log_writer import record
from tests.support.kafka_server import KafkaCluster
from tests.support.waiting import wait_until

from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.application_topics import ApplicationTopics, LogProperties
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.formats.application_logs import ApplicationLogNames
from embermq.formats.log_record import Stamp
from embermq.pipeline.jobs import kafka_dispatch
from embermq.pipeline.places import Places
from embermq.ports.errors import StoreUnavailable

GOES_ON_S = 150.0


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-3", "pipeline-14", "application-3")
def test_dispatch_waits_for_the_server_of_a_log_names_it_and_loses_nothing(
    spark: SparkSession, places: Places, kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_dispatch, "PROGRESS_S", 0.5)
    monkeypatch.setattr(kafka_dispatch, "HELD_UP_S", 2.0)
    log = LogInKafka(kafka_cluster.bootstrap, kafka_cluster.prefix())
    node = kafka_cluster.nodes[2]
    good, bad = log.log("good"), f"{log.kafka.application_prefix}bad"
    alone = NewTopic(bad, 1, replica_assignment=[[node.node_id]], config={"min.insync.replicas": "1"})
    kafka_cluster.nodes[0].admin.create_topics([alone])[bad].result(START_S)
    settings = KafkaSettings(prefix=log.kafka.prefix, request_timeout_s=1)
    admin = WatchedAdmin(parse_address(f"kafka://{kafka_cluster.bootstrap}"), settings)
    names = ApplicationLogNames(settings.prefix)
    topics = ApplicationTopics(admin, names, LogProperties(packet_bytes_max=1024))
    written = 0

    def append(count: int) -> None:
        nonlocal written
        stamps = (Stamp(good, 1, 1), Stamp(bad, 1, 1))
        log.append([record(f"r{i % 5}", b"%d" % i, stamps=stamps) for i in range(written, written + count)])
        written += count

    def sizes_are_told() -> bool:
        try:
            told = {size.name: (size.records, size.problem) for size in topics.sizes()}
        except StoreUnavailable:  # who was asked does not know yet that the leader is dead
            return False
        is_headless = told[bad][0] == 0 and told[bad][1].startswith("partition 0 has no leader")
        return told[good][0] >= 20 and told[good][1] == "" and is_headless

    with Running(spark, setup_of(log, places)) as keeper:
        append(20)
        log.wait_for_progress("dispatch")
        published = log.positions.progress()["dispatch"]
        node.kill()
        wait_until(
            lambda: log.positions.without_leader(log.kafka.application_prefix) == {bad: 0},
            START_S,
            "it is dead",
        )
        wait_until(sizes_are_told, START_S, "sizes are told, and what has no leader")
        append(20)
        wait_until(lambda: f"{bad} (partition 0)" in keeper.report().last_error, GOES_ON_S, "it is told")
        append(20)
        assert log.positions.progress()["dispatch"] == published, "not everything has arrived"
        kafka_cluster.heal()
        wait_until(lambda: log.positions.progress()["dispatch"] != published, GOES_ON_S, "it goes on")
        log.wait_for_progress("dispatch")
    for topic in (good, bad):
        found = log.read(topic)
        assert {int(one.value() or b"") for one in found} == set(range(written))
        firsts: dict[str, Message] = {}
        for one in found:
            firsts.setdefault(header(one, "s"), one)
        for key in {one.key() for one in found}:
            numbers = [int(one.value() or b"") for one in firsts.values() if one.key() == key]
            assert numbers == sorted(numbers), "first copies are in order"
