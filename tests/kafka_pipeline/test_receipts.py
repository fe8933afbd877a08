"""A broker with its log in Kafka writes down how long deliveries took, where the traffic query reads it."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.kafka_pipeline.kafka_pipeline_broker import KafkaPipelineBroker
from tests.support.metrics import metric
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_until

from embermq.mqtt.wire.packets import Packet, Publish, Subscription

SEEN_S = 30.0
MESSAGES = 32
SAMPLED = 16
DAY_US = 86_400_000_000
"""A latency is a difference of two clocks' times, and not one of them."""


@pytest.mark.promise("pipeline-9", "pipeline-15")
def test_one_delivery_in_sixteen_is_a_sample_of_both_client_types(
    kafka_pipeline_broker: KafkaPipelineBroker,
) -> None:
    broker = kafka_pipeline_broker
    wait_until(
        lambda: not metric(broker, "receipts_waiting_bytes"), SEEN_S, "those of earlier tests are stored"
    )
    before, dropped = metric(broker, "receipts_stored"), metric(broker, "receipts_dropped")

    async def delivered(client_id: str) -> None:
        """MESSAGES to one subscriber, which acknowledges them all."""
        client, publisher = MqttClient(client_id), MqttClient("receipts-publisher")
        all_there = asyncio.Event()

        def look(packet: Packet) -> None:
            if isinstance(packet, Publish) and len(client.messages) == MESSAGES - 1:
                all_there.set()

        client.on_packet = look
        await client.connect(broker.port, clean_start=False, expiry_s=600)
        await client.subscribe(Subscription(f"receipts/{client_id}", 1))
        await publisher.connect(broker.port)
        for number in range(MESSAGES):
            await publisher.publish(f"receipts/{client_id}", b"%d" % number, qos=1)
        await all_there.wait()
        await client.ping()
        client.close()
        publisher.close()

    run(delivered("receipts-device"))
    run(delivered("app-receipts"))
    wait_until(
        lambda: metric(broker, "receipts_stored") - before >= 2 * MESSAGES // SAMPLED,
        SEEN_S,
        "samples are in Kafka",
        poll_s=0.1,
    )
    samples = [
        sample
        for record in broker.records(f"{broker.prefix}.receipts")
        for sample in json.loads(record.value() or b"")
        if sample["r"] == "receipts"
    ]
    assert {sample["c"] for sample in samples} == {0, 1}
    assert len(samples) in range(2 * MESSAGES // SAMPLED - 1, 2 * MESSAGES // SAMPLED + 2)
    assert all(0 <= sample["l"] < DAY_US and sample["t"] > 1_700_000_000_000 for sample in samples)
    assert metric(broker, "receipts_dropped") == dropped
