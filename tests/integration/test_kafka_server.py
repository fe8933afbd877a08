"""The Kafka that tests run: what is acknowledged outlives a kill, and three nodes the loss of one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from tests.support.broker_process import free_port
from tests.support.kafka_server import KafkaCluster, KafkaServer
from tests.support.waiting import wait_until

RECORDS = [b"record %d" % number for number in range(200)]
DELIVERED_S = 60.0
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kafka"


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


@pytest.mark.in_faults
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


@pytest.mark.in_faults
def test_a_server_that_was_left_stopped_or_paused_is_healed(kafka: KafkaServer, topic: str) -> None:
    kafka.pause()
    wait_until(lambda: not kafka.answers(), what="its last thread has heard of it")
    kafka.heal()
    assert kafka.answers()
    kafka.stop()
    kafka.heal()
    produce(kafka.bootstrap, topic, RECORDS)


@pytest.mark.in_faults
def test_one_for_a_person_keeps_its_data_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    port, name = free_port(), "kept"
    command = [sys.executable, str(SCRIPT), "run", "--port", str(port), "--data", str(tmp_path)]
    server = KafkaServer(tmp_path, port=port)
    for is_first in (True, False):
        with run_by_a_person(command) as person:
            assert person.stdout is not None
            assert f"Kafka: {server.bootstrap} (data and output in {tmp_path})" in person.stdout.readline()
            if is_first:
                server.create_topic(name)
                produce(server.bootstrap, name, RECORDS)
                assert refusal(command) == f"There is no Kafka: another one runs on {tmp_path}\n"
                elsewhere = [*command[:-1], str(tmp_path / "other")]
                told = refusal(elsewhere)
                assert told.startswith("There is no Kafka: Kafka ended") and "Address already in use" in told
            assert everything(server.bootstrap, name, len(RECORDS)) == RECORDS
            person.send_signal(signal.SIGINT)
            assert person.wait(DELIVERED_S) == 0


def refusal(command: list[str]) -> str:
    """What it says to a person whom it refuses."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=DELIVERED_S)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


@contextmanager
def run_by_a_person(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    # Who runs the tests in the background may have SIGINT ignored, and children inherit that.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heard) as person:  # noqa: PLW1509
        try:
            yield person
        finally:
            person.kill()


def test_what_was_fetched_is_checked_quickly() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, timeout=DELIVERED_S
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_topics_are_not_made_by_asking_for_them(kafka: KafkaServer) -> None:
    name = f"{kafka.prefix()}.never"
    assert name not in kafka.admin.list_topics(timeout=DELIVERED_S).topics
    error = kafka.admin.list_topics(name, timeout=DELIVERED_S).topics[name].error
    assert error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert kafka.prefix() != kafka.prefix()


@pytest.mark.in_faults
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
