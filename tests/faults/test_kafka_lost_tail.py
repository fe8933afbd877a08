"""The message log in Kafka has lost its end with the power of a server: what is published then reaches everybody, once,
although Kafka gives the offsets again that readers have had already."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.faults.test_kafka_cut_log import DAY_S, comes, cut
from tests.support.broker_process import BrokerProcess
from tests.support.hand_pipeline import HandPipeline
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Subscription

SENT, KEPT = 6, 3


def payloads(client: MqttClient) -> list[bytes]:
    return [message.payload for message in client.messages]


async def has_all(client: MqttClient, wanted: list[bytes]) -> None:
    await wait_for(lambda: set(wanted) <= set(payloads(client)), 60, "new messages come")


async def publish(broker: BrokerProcess, pipeline: HandPipeline, word: str) -> list[bytes]:
    """QoS 1 and 2 in turn, a batch of its own each; what was acknowledged."""
    publisher = MqttClient("publisher")
    await publisher.connect(broker.port)
    for number in range(SENT):
        await publisher.publish(f"t/{number}", b"%s %d" % (word.encode(), number), qos=1 + number % 2)
        await asyncio.to_thread(pipeline.carry)
    publisher.close()
    await publisher.ended
    return [b"%s %d" % (word.encode(), number) for number in range(SENT)]


@pytest.mark.promise("application-8")
@pytest.mark.parametrize("broker_dies", [True, pytest.param(False, marks=pytest.mark.in_faults)])
def test_new_messages_at_offsets_that_were_given_before_come_once(
    broker_dies: bool, kafka: KafkaServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """A client's own log and a shared one; a broker that lives ends by itself, and is started again."""
    prefix = str(servers["kafka.prefix"])
    settings = servers | {"clients.application_ids": "app*"}

    async def scenario(broker: BrokerProcess, pipeline: HandPipeline) -> None:
        client, member = await comes(broker), MqttClient("app-member")
        await member.connect(broker.port, clean_start=False, expiry_s=DAY_S)
        await client.subscribe(Subscription("t/#", 2))
        await member.subscribe(Subscription("$share/g/t/#", 2))
        expected = await publish(broker, pipeline, "old")
        await wait_for(lambda: len(client.messages) == len(member.messages) == SENT, 30)
        for each in (client, member, client, member):
            await each.ping()  # what they acknowledged is stored
        await asyncio.to_thread(kafka.kill)
        if broker_dies:
            broker.kill()
        cut(kafka, f"{prefix}.msg.all", KEPT)
        await asyncio.to_thread(kafka.start)
        if not broker_dies:
            lost = MqttClient("publisher")
            await lost.connect(broker.port)
            publishing = asyncio.ensure_future(lost.publish("t/in between", b"nobody was told of it", qos=1))
            assert await asyncio.to_thread(broker.wait, 60) == 1
            publishing.cancel()
        await asyncio.to_thread(broker.start)
        assert "New ones go to partition 1" in broker.output()
        for each in (client, member):
            await asyncio.wait_for(each.ended, 30)
        again, member_again = await comes(broker), MqttClient("app-member")
        await member_again.connect(broker.port, clean_start=False, expiry_s=DAY_S)
        new = await publish(broker, pipeline, "new")
        expected += new
        for first, second in ((client, again), (member, member_again)):
            await has_all(second, new)
            got = [*payloads(first), *payloads(second)]
            assert sorted(payload for payload in got if b"nobody" not in payload) == sorted(expected)
        again.close()
        member_again.close()

    with (
        BrokerProcess(tmp_path / "data", settings=settings) as broker,
        HandPipeline(kafka, prefix) as pipeline,
    ):
        run(scenario(broker, pipeline), 300)
