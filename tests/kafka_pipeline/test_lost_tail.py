"""The message log in Kafka has lost its end under a running pipeline: what is published then is delivered and archived,
once, although Kafka gives the offsets again that the queries have passed."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from tests.faults.test_kafka_cut_log import DAY_S, cut
from tests.kafka_pipeline.kafka_pipeline_broker import PipelineBroker
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for

from embermq.adapters.sqlite.message_store import SqliteMessageStore
from embermq.mqtt.wire.packets import Subscription

SENT, KEPT = 8, 3
SPARK_S = 240.0


async def published(broker: PipelineBroker[KafkaServer], word: str) -> list[bytes]:
    """Of QoS 2, a batch of its own each."""
    publisher = MqttClient("publisher")
    await publisher.connect(broker.port)
    sent = [b"%s %d" % (word.encode(), number) for number in range(SENT)]
    for payload in sent:
        await publisher.publish("tail/a", payload, qos=2)
    publisher.close()
    return sent


def archived(broker: PipelineBroker[KafkaServer]) -> list[bytes]:
    with closing(SqliteMessageStore(broker.data_dir / "messages.db", is_kafka=True)) as store:
        return [stored.message.payload for stored in store.range("tail/a", -1, 1_000)]


async def attached(broker: PipelineBroker[KafkaServer], *, clean: bool) -> MqttClient:
    client = MqttClient("app-tail")
    await client.connect(broker.port, clean_start=clean, expiry_s=DAY_S)
    return client


@pytest.mark.in_faults
@pytest.mark.promise("application-3", "pipeline-2")
@pytest.mark.parametrize(("mode", "broker_dies"), [("realtime", True), ("microbatch", False)])
def test_queries_that_have_passed_the_end_of_the_log_miss_nothing_new(
    broker_dies: bool, mode: str, kafka: KafkaServer, tmp_path: Path
) -> None:
    own = {"log.retention_hours": 1, "pipeline.mode": mode}

    async def scenario(broker: PipelineBroker[KafkaServer]) -> None:
        client = await attached(broker, clean=True)
        await client.subscribe(Subscription("tail/#", 2))
        old = await published(broker, "old")
        await wait_for(lambda: len(client.messages) == SENT, SPARK_S, "old messages come")
        await wait_for(lambda: archived(broker) == old, SPARK_S, "old messages are archived")
        await asyncio.to_thread(kafka.kill)
        if broker_dies:
            broker.kill()
        cut(kafka, f"{broker.prefix}.msg.all", KEPT)
        await asyncio.to_thread(kafka.start)
        if not broker_dies:
            unheard = MqttClient("unheard")
            await unheard.connect(broker.port)
            unanswered = asyncio.ensure_future(unheard.publish("tail/b", b"nobody", qos=1))
            assert await asyncio.to_thread(broker.wait, 60) == 1
            unanswered.cancel()
        await asyncio.to_thread(broker.start)
        again = await attached(broker, clean=False)
        new = await published(broker, "new")
        await wait_for(
            lambda: new[-1] in [one.payload for one in again.messages], SPARK_S, "new messages come"
        )
        await wait_for(lambda: archived(broker)[-1:] == new[-1:], SPARK_S, "new messages are archived")
        assert archived(broker) == old + new
        got = [one.payload for one in (*client.messages, *again.messages) if one.payload != b"nobody"]
        assert got == old + new
        assert not broker.count(f"{broker.prefix}.msg.rejected")
        again.close()

    with PipelineBroker(kafka, tmp_path, own) as broker:
        broker.wait_for_pipeline()
        run(scenario(broker), 650)
