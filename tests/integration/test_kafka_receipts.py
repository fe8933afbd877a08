"""Samples of delivery latency on their way into a real Kafka that goes away and comes back."""

import time

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from tests.support.kafka_server import KafkaServer
from tests.support.waiting import wait_until

from embermq.adapters.kafka import receipt_topic
from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.receipt_topic import ReceiptTopic
from embermq.formats.receipts import SAMPLE

BACK_S = 60.0
BYTES_MAX = 65_536
SAMPLE_BYTES = SAMPLE.size + 4
TAKE_MS_MAX = 1_000.0


def samples(count: int) -> list[bytes]:
    return [SAMPLE.pack(5, 6, 1, 4) + b"root" for _ in range(count)]


@pytest.mark.promise("pipeline-7")
def test_samples_are_held_up_to_a_limit_while_kafka_is_away_and_nothing_waits(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_topic, "EVERY_S", 0.05)
    monkeypatch.setattr(receipt_topic, "BYTES_MAX", BYTES_MAX)
    settings = KafkaSettings(prefix=kafka.prefix())
    topic = ReceiptTopic(parse_address(f"kafka://{kafka.bootstrap}"), settings)
    try:
        topic.take(samples(10))
        wait_until(lambda: topic.statistics().stored == 10, BACK_S, "the first ones are stored")
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic.name)
        found = admin.describe_configs([resource])[resource].result(BACK_S)
        assert (found["retention.ms"].value, found["cleanup.policy"].value) == ("3600000", "delete")
        kafka.pause()
        try:
            began = time.monotonic()
            for _ in range(50):
                topic.take(samples(100))
            assert (time.monotonic() - began) * 1000 / 50 < TAKE_MS_MAX
            away = topic.statistics()
            fitting = BYTES_MAX // (100 * SAMPLE_BYTES) * 100
            assert away == type(away)(10, 5_000 - fitting, fitting * SAMPLE_BYTES)
        finally:
            kafka.resume()
        wait_until(
            lambda: topic.statistics() == type(away)(10 + fitting, away.dropped, 0),
            BACK_S,
            "the rest is stored",
        )
    finally:
        topic.close()


def test_a_topic_that_somebody_deleted_is_made_again(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_topic, "EVERY_S", 0.05)
    monkeypatch.setattr(receipt_topic, "RETRY_S", 0.1)
    monkeypatch.setattr(receipt_topic, "KEPT_S", 2)
    monkeypatch.setattr(receipt_topic, "GONE_MS", 500)
    topic = ReceiptTopic(parse_address(f"kafka://{kafka.bootstrap}"), KafkaSettings(prefix=kafka.prefix()))
    try:
        topic.take(samples(1))
        wait_until(lambda: topic.statistics().stored == 1, BACK_S, "it is there")
        kafka.delete_topic(topic.name)

        def is_stored_again() -> bool:
            topic.take(samples(1))
            return topic.statistics().stored > 1

        wait_until(is_stored_again, BACK_S, "samples are stored again", poll_s=0.2)
        assert topic.statistics().dropped > 0
    finally:
        topic.close()
