"""The Kafka that tests run: what is acknowledged outlives a kill, and three nodes the loss of one."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from tests.support.kafka_server import KafkaCluster, KafkaServer
from tests.support.waiting import wait_until

RECORDS = [b"record %d" % number for number in range(200)]
DELIVERED_S = 60.0


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    """Returns when all are acknowledged by all copies in sync."""
    reports: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(DELIVERED_S) == 0
    assert reports == [None] * len(values)


def everything(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    """The records of partition 0, which are waited for."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[Message] = []

    def are_there() -> bool:
        found.extend(consumer.consume(count, timeout=0.1))
        return len(found) >= count

    try:
        wait_until(are_there, DELIVERED_S, f"{count} records of {topic}")
    finally:
        consumer.close()
    assert [message.error() for message in found] == [None] * len(found)
    return [message.value() for message in found]


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    name = f"{kafka.prefix()}.topic"
    kafka.create_topic(name)
    return name


def test_what_is_acknowledged_outlives_a_kill(kafka: KafkaServer, topic: str) -> None:
    pid, bootstrap = kafka.pid, kafka.bootstrap
    produce(bootstrap, topic, RECORDS)
    kafka.kill()
    assert not kafka.is_running and not kafka.answers()
    kafka.restart()
    assert (kafka.pid != pid, kafka.bootstrap) == (True, bootstrap)
    assert everything(bootstrap, topic, len(RECORDS)) == RECORDS
    produce(bootstrap, topic, [b"after"])
    assert everything(bootstrap, topic, len(RECORDS) + 1) == [*RECORDS, b"after"]


def test_a_server_that_was_left_stopped_or_paused_is_healed(kafka: KafkaServer, topic: str) -> None:
    kafka.pause()
    assert not kafka.answers()
    kafka.heal()
    assert kafka.answers()
    kafka.stop()
    kafka.heal()
    produce(kafka.bootstrap, topic, RECORDS)


def test_topics_are_not_made_by_asking_for_them(kafka: KafkaServer) -> None:
    name = f"{kafka.prefix()}.never"
    assert name not in kafka.admin.list_topics(timeout=DELIVERED_S).topics
    error = kafka.admin.list_topics(name, timeout=DELIVERED_S).topics[name].error
    assert error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert kafka.prefix() != kafka.prefix()


def test_a_cluster_goes_on_without_one_of_its_nodes(kafka_cluster: KafkaCluster) -> None:
    name = f"{kafka_cluster.prefix()}.topic"
    kafka_cluster.create_topic(name, settings={"min.insync.replicas": "2"})
    produce(kafka_cluster.bootstrap, name, RECORDS)
    kafka_cluster.leader(name).kill()
    produce(kafka_cluster.bootstrap, name, [b"after"])
    assert everything(kafka_cluster.bootstrap, name, len(RECORDS) + 1) == [*RECORDS, b"after"]
    wait_until(lambda: kafka_cluster.copies_in_sync(name) == 2, DELIVERED_S, "the dead node is known as such")
    kafka_cluster.heal()
    wait_until(lambda: kafka_cluster.copies_in_sync(name) == 3, DELIVERED_S, "the third copy is there again")
