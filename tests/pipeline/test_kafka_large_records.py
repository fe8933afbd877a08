"""Dispatch on a real Kafka: a record that is larger than what the log of one client takes."""

from collections import defaultdict
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession
from tests.pipeline.dispatching import Running, header, payloads, setup_of
from tests.pipeline.driver_process import START_S
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.log_writer import record
from tests.support.kafka_server import KafkaServer
from tests.support.waiting import wait_until

from embermq.formats.log_record import Stamp
from embermq.pipeline.jobs.kafka_watch import REFUSED
from embermq.pipeline.places import Places
from embermq.pipeline.settings import Mode

HEALED_S = 30.0
OLD = 100_000
MESSAGE_LOG = 1_048_588
"""What Kafka gives a topic that says nothing."""
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def frames(first: int, sizes: list[int], *logs: str) -> list[bytes]:
    """Records of these sizes for each log, of five topics in turn; each begins with its number."""
    stamps = tuple(Stamp(log, 7, 1) for log in logs)
    numbered = enumerate(sizes, first)
    return [
        record(f"r{number % 5}", b"%06d" % number + bytes(size), stamps=stamps) for number, size in numbered
    ]


def numbers(log: LogInKafka, topic: str) -> list[int]:
    return [int(payload[:6]) for payload in payloads(log, topic)]


def is_in_order(log: LogInKafka, topic: str) -> bool:
    """Of each MQTT topic, with what a reader knows as a repeat left out."""
    seen: set[str] = set()
    of_topic: defaultdict[object, list[int]] = defaultdict(list)
    for one in log.read(topic):
        if header(one, "s") not in seen:
            seen.add(header(one, "s"))
            of_topic[one.key()].append(int((one.value() or b"")[:6]))
    return all(found == sorted(found) for found in of_topic.values())


class Rights:
    """Of who asks a Kafka: it may do everything with the topics of a prefix, but change their settings."""

    def __init__(self, kafka: KafkaServer, prefix: str) -> None:
        self._kafka = kafka
        self._prefix = prefix
        for operation, permission in (("ALL", "ALLOW"), ("ALTER_CONFIGS", "DENY")):
            (answer,) = kafka.admin.create_acls([self._binding(operation, permission)]).values()
            answer.result(START_S)

    def _binding(self, operation: str, permission: str) -> AclBinding:
        return AclBinding(
            ResourceType.TOPIC,
            self._prefix,
            ResourcePatternType.PREFIXED,
            "User:*",
            "*",
            AclOperation[operation],
            AclPermissionType[permission],
        )

    def grant(self) -> None:
        denied = AclBindingFilter(
            ResourceType.TOPIC,
            self._prefix,
            ResourcePatternType.PREFIXED,
            "User:*",
            "*",
            AclOperation.ALTER_CONFIGS,
            AclPermissionType.DENY,
        )
        (answer,) = self._kafka.admin.delete_acls([denied]).values()
        assert len(answer.result(START_S)) == 1


@pytest.fixture(scope="module")
def strict_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One that asks who may do what."""
    with KafkaServer(tmp_path_factory.mktemp("strict-kafka"), settings=AUTHORIZER) as server:
        yield server


@pytest.fixture
def strict_log(strict_kafka: KafkaServer) -> LogInKafka:
    return LogInKafka(strict_kafka.bootstrap, strict_kafka.prefix())


@pytest.mark.promise("pipeline-4", "pipeline-14")
@pytest.mark.parametrize("mode", ["realtime", pytest.param("microbatch", marks=pytest.mark.in_faults)])
def test_a_log_that_takes_too_little_of_a_record_takes_it_soon(
    spark: SparkSession, places: Places, kafka_log: LogInKafka, mode: Mode
) -> None:
    """It was altered while dispatch runs. Other clients lose nothing and keep their order."""
    old, other = kafka_log.log("old"), kafka_log.log("other")
    with Running(spark, setup_of(kafka_log, places, mode)) as keeper:
        kafka_log.append(frames(0, [10] * 50, old, other))
        wait_until(lambda: kafka_log.count(old) == 50, START_S, "dispatch runs", poll_s=0.1)
        assert kafka_log.positions.raise_record_limits({old: OLD}) == {}
        sizes = [200_000 if i % 20 == 10 else 10 for i in range(200)]
        kafka_log.append(frames(50, sizes, old, other))
        wait_until(
            lambda: set(numbers(kafka_log, old)) == set(range(250)), HEALED_S, "all are there", poll_s=0.2
        )
        kafka_log.wait_for_progress("dispatch")
        assert 1 <= keeper.report().restarts <= 2
    assert set(numbers(kafka_log, other)) == set(range(250))
    assert is_in_order(kafka_log, other)
    assert kafka_log.positions.record_limits([old, other]) == {old: MESSAGE_LOG, other: MESSAGE_LOG}
    assert kafka_log.count(kafka_log.kafka.rejected_topic) == 0


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-4", "pipeline-14")
def test_dispatch_waits_for_who_may_let_a_log_take_more_and_loses_nothing(
    spark: SparkSession, places: Places, strict_kafka: KafkaServer, strict_log: LogInKafka
) -> None:
    log = strict_log
    old, other = log.log("old", takes=OLD), log.log("other")
    rights = Rights(strict_kafka, log.kafka.prefix)
    with Running(spark, setup_of(log, places)) as keeper:
        log.append(frames(0, [10, OLD, 10], old, other))
        wait_until(lambda: REFUSED in keeper.report().last_error, START_S, "it is told", poll_s=0.2)
        rights.grant()
        assert log.positions.raise_record_limits({old: 2 * OLD}) == {}
        log.wait_for_progress("dispatch")
    for topic in (old, other):
        assert set(numbers(log, topic)) == {0, 1, 2} and is_in_order(log, topic)
    assert log.count(log.kafka.rejected_topic) == 0


@pytest.mark.promise("pipeline-3", "pipeline-14")
def test_a_log_of_an_older_setting_is_found_before_anything_is_too_large_for_it(
    spark: SparkSession, places: Places, kafka_log: LogInKafka
) -> None:
    old = kafka_log.log("old", takes=OLD)
    with Running(spark, setup_of(kafka_log, places)) as keeper:
        kafka_log.append(frames(0, [10, 300_000, 10], old))
        kafka_log.wait_for_progress("dispatch")
        assert keeper.report().restarts == 0
    assert numbers(kafka_log, old) == [0, 1, 2]


@pytest.mark.in_faults
def test_settings_of_topics_that_are_gone_or_may_not_be_changed(
    strict_kafka: KafkaServer, strict_log: LogInKafka
) -> None:
    positions, log = strict_log.positions, strict_log.log("one", takes=OLD)
    nobody = f"{log}.nobody"
    assert positions.record_limits([log, nobody]) == {log: OLD}
    assert positions.raise_record_limits({log: OLD + 1, nobody: OLD}) == {}
    Rights(strict_kafka, strict_log.kafka.prefix)
    (why,) = positions.raise_record_limits({log: OLD + 2}).values()
    assert "authorization failed" in why.lower()
    assert positions.record_limits([log]) == {log: OLD + 1}
