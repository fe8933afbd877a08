"""The broker runs its pipeline on a log in Kafka: what it does, says and keeps."""

from __future__ import annotations

import pytest
from tests.kafka_pipeline.kafka_pipeline_broker import KafkaPipelineBroker
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_until

SEEN_S = 30.0


async def published(broker: KafkaPipelineBroker, client_id: str, topic: str, count: int) -> None:
    publisher = MqttClient(client_id)
    await publisher.connect(broker.port)
    for number in range(count):
        await publisher.publish(topic, b"%d" % number, qos=1)
    publisher.close()


@pytest.mark.promise("pipeline-6", "pipeline-13")
def test_the_queries_run_on_kafka_and_say_how_far_they_are(
    kafka_pipeline_broker: KafkaPipelineBroker,
) -> None:
    broker = kafka_pipeline_broker
    run(published(broker, "status-publisher", "status/one", 20))
    wait_until(
        lambda: (
            {query["name"]: query["lag_messages"] for query in broker.status()["queries"]}
            == {"dispatch": 0, "archive": 0}
        ),
        90,
        "all have done everything",
        poll_s=0.2,
    )
