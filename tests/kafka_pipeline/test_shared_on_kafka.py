"""Shared subscriptions of APPLICATION clients by way of the real pipeline."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.kafka_pipeline.kafka_pipeline_broker import KafkaPipelineBroker
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Subscription
from embermq.mqtt.wire.properties import Properties

KEPT = Properties(session_expiry_interval=86_400)
MESSAGES = 80
TOPICS = 8


@pytest.mark.promise("application-11")
def test_each_message_comes_to_one_member_and_waits_while_both_are_away(
    kafka_pipeline_broker: KafkaPipelineBroker,
) -> None:
    broker = kafka_pipeline_broker

    async def comes(client_id: str) -> MqttClient:
        client = MqttClient(client_id)
        connack = await client.connect(broker.port, clean_start=False, properties=KEPT)
        if not connack.session_present:
            assert await client.subscribe(Subscription("$share/both/spark/+/x", 2)) == (2,)
        return client

    async def publishes(first: int) -> None:
        publisher = MqttClient("publisher-of-shared", keeps=False)
        await publisher.connect(broker.port)
        await asyncio.gather(
            *(
                publisher.publish(f"spark/{number % TOPICS}/x", b"%04d" % number, qos=1 + number % 2)
                for number in range(first, first + MESSAGES)
            )
        )
        publisher.close()

    async def scenario() -> None:
        first = [await comes("appshared1"), await comes("appshared2")]
        await publishes(0)
        await wait_for(lambda: sum(len(one.messages) for one in first) >= MESSAGES, 60, "all have come")
        for one in first:
            one.close()
        await publishes(MESSAGES)
        then = [await comes("appshared1"), await comes("appshared2")]
        await wait_for(lambda: sum(len(one.messages) for one in then) >= MESSAGES, 60, "what waited has come")
        messages = [message for one in (*first, *then) for message in one.messages]
        assert Counter(message.payload for message in messages) == Counter(
            b"%04d" % number for number in range(2 * MESSAGES)
        )
        for topic in range(TOPICS):
            found = [message.payload for message in messages if message.topic == f"spark/{topic}/x"]
            assert found == sorted(found)  # a topic has one QoS

    run(scenario())
    assert f"{broker.prefix}.msg.app.shared.spark.slw.x" in broker.command_line("sessions", "logs")
