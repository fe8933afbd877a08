"""APPLICATION clients of a real broker whose pipeline does not run: who is there gets its messages all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import metrics
from tests.support.mqtt_client import MqttClient, run
from tests.support.played_pipeline import PlayedPipeline
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Subscription
from embermq.mqtt.wire.version import ProtocolVersion

KEPT_S = 3_600
WAIT_S = 60
MESSAGES = [b"%d" % number for number in range(40)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, settings={"clients.application_ids": "app-*"}) as broker:
        yield broker


async def enters(broker: BrokerProcess) -> MqttClient:
    client = MqttClient("app-1", version=ProtocolVersion.V5)
    answer = await client.connect(broker.port, clean_start=False, expiry_s=KEPT_S)
    if not answer.session_present:
        await client.subscribe(Subscription("t/#", 2))
    return client


async def publish(broker: BrokerProcess, payloads: list[bytes]) -> None:
    publisher = MqttClient("publisher")
    await publisher.connect(broker.port)
    await asyncio.gather(
        *(publisher.publish("t/1", payload, qos=1 + number % 2) for number, payload in enumerate(payloads))
    )
    publisher.close()
    await publisher.ended


def payloads(client: MqttClient) -> list[bytes]:
    return [message.payload for message in client.messages]


@pytest.mark.promise("application-3", "application-14")
def test_a_message_arrives_while_the_pipeline_does_not_run(broker: BrokerProcess, tmp_path: Path) -> None:
    def shows(state: str) -> bool:
        return f'embermq_pipeline_state{{state="{state}"}} 1.0' in metrics(broker)

    async def scenario() -> None:
        await wait_for(lambda: shows("off"), WAIT_S, "nobody wants a pipeline")
        client = await enters(broker)
        await wait_for(lambda: shows("down"), WAIT_S, "an application does")
        await publish(broker, MESSAGES)
        await wait_for(lambda: len(client.messages) == len(MESSAGES), WAIT_S, "all have come")
        assert payloads(client) == MESSAGES
        broker.kill()
        await client.ended
        await asyncio.to_thread(broker.start)
        again = await enters(broker)
        with PlayedPipeline(tmp_path):
            await publish(broker, [b"last"])
            await wait_for(lambda: payloads(again)[-1:] == [b"last"], WAIT_S, "what follows comes")
        came = [message.payload for message in again.messages[:-1] if not message.dup]
        assert came == [one for one in MESSAGES[::2] if one in came], "as new come those of QoS 1, in order"
        again.close()
        await again.ended

    run(scenario())
