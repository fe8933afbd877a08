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
from embermq.pipeline.jobs import kafka_dispatch
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
@pytest.mark.parametrize("mode", ["realtime", "microbatch"])
def test_a_log_that_takes_too_little_of_a_record_takes_it_soon(
    spark: SparkSession, places: Places, kafka_log: LogInKafka, mode: Mode
) -> None:
    """Of an older setting, or altered by somebody. Other clients lose nothing and keep their order."""
    old, other = kafka_log.log("old", takes=OLD), kafka_log.log("other")
    with Running(spark, setup_of(kafka_log, places, mode)) as keeper:
        kafka_log.append(frames(0, [10] * 50, old, other))
        wait_until(lambda: kafka_log.count(old) == 50, START_S, "dispatch runs", poll_s=0.1)
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
def test_what_a_log_may_not_take_is_rejected_to_the_byte_and_carried_when_it_may(
    spark: SparkSession, places: Places, strict_kafka: KafkaServer, strict_log: LogInKafka
) -> None:
    log = strict_log
    old, other = log.log("old", takes=OLD), log.log("other")
    rights = Rights(strict_kafka, log.kafka.prefix)
    sizes = [*range(OLD - 200, OLD - 100), 10, 10]
    with Running(spark, setup_of(log, places)):
        log.append(frames(0, sizes, old, other))
        log.wait_for_progress("dispatch")
        taken, rejected = set(numbers(log, old)), log.read(log.kafka.rejected_topic)
        refused = {int((one.value() or b"")[:6]): header(one, "r") for one in rejected}
        assert taken | refused.keys() == set(range(102)) and not taken & refused.keys()
        assert {100, 101} < taken and len(refused) > 10, "both kinds"
        takes = f"which takes {OLD} bytes of a record (max.message.bytes)"
        told = f"too large for the application log {old}, {takes}: it has "
        assert [refused[number] for number in sorted(refused)] == [
            f"{told}{OLD + 1 + i}" for i in range(len(refused))
        ]
        assert {header(one, "a") for one in rejected} == {f"{old};7;1;"}
        assert set(numbers(log, other)) == set(range(102)) and is_in_order(log, other)
        rights.grant()
        assert log.positions.raise_record_limits({old: 2 * OLD}) == {}

        def is_carried() -> bool:
            """Until it is noticed, some are rejected."""
            log.append(frames(log.written, [OLD], old))
            log.wait_for_progress("dispatch")
            return log.written - 1 in numbers(log, old)

        wait_until(is_carried, HEALED_S, "what it takes now is carried", poll_s=0.2)


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-4", "pipeline-14")
def test_what_even_the_topic_for_rejected_records_does_not_take_is_known_by_its_position(
    spark: SparkSession, places: Places, strict_kafka: KafkaServer, strict_log: LogInKafka
) -> None:
    log = strict_log
    old = log.log("old", takes=OLD)
    log.positions.ensure_topic(log.kafka.rejected_topic, settings={"max.message.bytes": str(OLD)})
    Rights(strict_kafka, log.kafka.prefix)
    with Running(spark, setup_of(log, places)):
        log.append(
            [
                record("r", b"%06d" % i + bytes(size), stamps=(Stamp(old, 7, 1),))
                for i, size in enumerate((10, OLD, 10))
            ]
        )
        log.wait_for_progress("dispatch")
    assert set(numbers(log, old)) == {0, 2}
    (rejected,) = log.read(log.kafka.rejected_topic)
    assert rejected.value() is None and [one[0] for one in rejected.headers() or []] == ["s", "r"]
    assert header(rejected, "s").endswith(";1") and header(rejected, "r").startswith("too large for")


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-14")
def test_many_small_records_for_a_log_that_takes_less_than_they_have_together(
    spark: SparkSession,
    places: Places,
    strict_kafka: KafkaServer,
    strict_log: LogInKafka,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A producer divides such a batch into pieces of its own size, again and again."""
    monkeypatch.setattr(kafka_dispatch, "HELD_UP_S", 2.0)
    monkeypatch.setattr(kafka_dispatch, "PROGRESS_S", 0.5)
    log = strict_log
    old, other = log.log("old", takes=2_000), log.log("other")
    Rights(strict_kafka, log.kafka.prefix)
    with Running(spark, setup_of(log, places)):
        log.append(frames(0, [100] * 300, old, other))
        log.wait_for_progress("dispatch")
    for topic in (old, other):
        assert set(numbers(log, topic)) == set(range(300)) and is_in_order(log, topic)
    assert log.count(log.kafka.rejected_topic) == 0


@pytest.mark.promise("pipeline-14")
def test_a_log_of_an_older_setting_is_found_before_anything_is_too_large_for_it(
    spark: SparkSession, places: Places, kafka: KafkaServer
) -> None:
    log = LogInKafka(kafka.bootstrap, kafka.prefix(), record_bytes_max=500_000)
    old = log.log("old", takes=OLD)
    with Running(spark, setup_of(log, places)) as keeper:
        log.append(frames(0, [10], old))
        wait_until(lambda: log.count(old) == 1, START_S, "dispatch runs", poll_s=0.1)
        later = log.log("later", takes=OLD)
        wait_until(
            lambda: log.positions.record_limits([old, later]) == {old: 500_000, later: 500_000},
            HEALED_S,
            "both take what is needed",
            poll_s=0.2,
        )
        log.append(frames(1, [300_000, 10], old, later))
        log.wait_for_progress("dispatch")
        assert keeper.report().restarts == 0
    assert numbers(log, old) == [0, 1, 2] and is_in_order(log, later)


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
