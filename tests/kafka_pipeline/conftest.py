"""The one broker that all tests of this family share: its start, with Spark's, takes longer than most of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.kafka_pipeline.kafka_pipeline_broker import KafkaPipelineBroker
from tests.support.kafka_server import KafkaServer

__all__ = ["kafka_pipeline_broker", "running_kafka_pipeline"]


@pytest.fixture(scope="package")
def running_kafka_pipeline(
    running_kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaPipelineBroker]:
    """One for all tests here, which take it as `kafka_pipeline_broker`; it would work on beside all others."""
    running_kafka.heal()
    broker = KafkaPipelineBroker(running_kafka, tmp_path_factory.mktemp("kafka-pipeline"))
    with broker:
        yield broker


@pytest.fixture
def kafka_pipeline_broker(
    running_kafka_pipeline: KafkaPipelineBroker, request: pytest.FixtureRequest
) -> Iterator[KafkaPipelineBroker]:
    """A broker whose log is in Kafka, with its pipeline in real-time mode. A test takes topics and client ids that no
    other has (`app...` are APPLICATION clients), and may kill broker, driver or Kafka and leave it so."""
    running_kafka_pipeline.heal()
    before = running_kafka_pipeline.output_size()
    failed = request.session.testsfailed
    yield running_kafka_pipeline
    if request.session.testsfailed > failed:
        printed = running_kafka_pipeline.output_from(before).decode(errors="replace")
        driver_log = running_kafka_pipeline.data_dir / "pipeline" / "driver.log"
        driver = driver_log.read_text(errors="replace")[-8_000:] if driver_log.exists() else "none"
        sys.stderr.write(
            f"--- output of the broker during {request.node.name}\n{printed}\n--- and of the driver\n{driver}\n"
        )
