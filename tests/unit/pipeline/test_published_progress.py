"""Queries publish their progress side by side, by one producer: each waits for its own records."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from embermq.pipeline.errors import KafkaLogError
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.sources.kafka_positions import KafkaPositions

Report = Callable[[KafkaError | None, object], None]


class HandProducer:
    """Reports what is not `held`, at the next poll."""

    def __init__(self) -> None:
        self.waiting: list[tuple[bytes, Report]] = []
        self.held = b"\0"
        self.error: KafkaError | None = None

    def produce(self, _topic: str, _value: bytes, key: bytes, *, on_delivery: Report, **_: Any) -> None:
        self.waiting.append((key, on_delivery))

    def poll(self, _timeout_s: float) -> int:
        due = [(key, report) for key, report in self.waiting if not key.startswith(self.held)]
        self.waiting = [entry for entry in self.waiting if entry not in due]
        for _, report in due:
            report(self.error, None)
        return len(due)

    def flush(self, timeout_s: float) -> int:
        self.poll(timeout_s)
        return len(self.waiting)


@pytest.fixture
def producer() -> HandProducer:
    return HandProducer()


@pytest.fixture
def positions(producer: HandProducer) -> KafkaPositions:
    found = KafkaPositions(KafkaLog(bootstrap="127.0.0.1:1"), timeout_s=0.2)
    found._producer = cast(Producer, producer)
    return found


def test_a_query_does_not_wait_for_what_another_one_has_on_its_way(
    positions: KafkaPositions, producer: HandProducer
) -> None:
    producer.held = b"archive"
    with pytest.raises(KafkaLogError, match="progress of archive could not be published: no answer"):
        positions.publish("archive", {0: 5})
    positions._producer = cast(Producer, producer)
    positions.publish("dispatch", {0: 7, 1: 8})
    assert [key for key, _ in producer.waiting] == [key for key, _ in producer.waiting if b"archive" in key]
    assert len(producer.waiting) == 1


def test_a_kafka_that_is_not_reached_is_told_with_the_reason_and_always_in_the_same_words() -> None:
    positions = KafkaPositions(KafkaLog(bootstrap="127.0.0.1:1"), timeout_s=0.5)
    told = set()
    for _ in range(2):
        with pytest.raises(KafkaLogError) as error:
            positions.partitions()
        told.add(str(error.value).partition(" (")[2])
    (reason,) = told
    assert reason.startswith("127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused)")


def test_a_failure_is_that_of_the_query_whose_record_it_is(
    positions: KafkaPositions, producer: HandProducer
) -> None:
    producer.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(KafkaLogError, match="progress of dispatch could not be published"):
        positions.publish("dispatch", {0: 7})
    assert positions._producer is None  # it is made anew, and the topic with it


def test_a_log_without_partitions_is_none_yet_or_none_any_more(positions: KafkaPositions) -> None:
    class Deleting:
        def list_topics(self, topic: str, timeout: float) -> Any:
            return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={})})

        def poll(self, _timeout_s: float) -> int:
            return 0

    positions._admin = cast(AdminClient, Deleting())
    with pytest.raises(KafkaLogError, match="has no partitions"):
        positions.bounds()
