"""An application log in Kafka that has lost its end: what a server has not written when its power goes may be lost."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.hand_pipeline import HandPipeline
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Pubrec, Pubrel, Subscription

SENT, KEPT = 6, 3
DAY_S = 86_400


def cut(kafka: KafkaServer, log: str, batches: int) -> None:
    """Of its only partition so many batches are left; Kafka is down."""
    path = kafka.folder / "data" / f"{log}-0" / f"{0:020}.log"
    data = path.read_bytes()
    end = 0
    for _ in range(batches):
        _, size = struct.unpack_from(">qi", data, end)
        end += 12 + size
    assert end < len(data)
    path.write_bytes(data[:end])


async def comes(broker: BrokerProcess, *, client_id: str = "app", acknowledges: bool = True) -> MqttClient:
    """Until it is let in."""
    while True:
        client = MqttClient(client_id, acknowledges=acknowledges)
        answer = await client.connect(broker.port, clean_start=False, expiry_s=DAY_S)
        if answer.reason_code == 0:
            return client
        await client.ended


@pytest.mark.promise("application-8")
@pytest.mark.parametrize("broker_dies", [pytest.param(False, marks=pytest.mark.in_faults), True])
def test_what_was_under_way_comes_again_with_its_packet_ids(
    broker_dies: bool, kafka: KafkaServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """QoS 1 and 2 in turn; the last one has PUBREC. The pipeline begins anew, and repeats all that it did."""
    prefix = str(servers["kafka.prefix"])
    settings = servers | {"clients.application_ids": "app"}

    async def scenario(broker: BrokerProcess, pipeline: HandPipeline) -> None:
        publisher, client = MqttClient("publisher"), await comes(broker, acknowledges=False)
        await publisher.connect(broker.port)
        await client.subscribe(Subscription("t/#", 2))
        for number in range(SENT):
            await publisher.publish(f"t/{number}", b"%d" % number, qos=1 + number % 2)
            await asyncio.to_thread(pipeline.carry)  # a batch of its own
        await wait_for(lambda: len(client.messages) == SENT, 30)
        sent = [(message.payload, message.qos, message.packet_id) for message in client.messages]
        client.send(Pubrec(sent[-1][2]))
        await client.expect(Pubrel, sent[-1][2])
        await asyncio.to_thread(kafka.kill)
        if broker_dies:
            broker.kill()
        cut(kafka, f"{prefix}.msg.app.app", KEPT)
        await asyncio.to_thread(kafka.start)
        if broker_dies:
            await asyncio.to_thread(broker.start)
        await asyncio.wait_for(client.ended, 30)
        again = await comes(broker)
        await wait_for(lambda: len(again.messages) == SENT - 1, 30)
        assert [(message.payload, message.qos, message.packet_id) for message in again.messages] == sent[:-1]
        assert all(message.dup for message in again.messages)
        await wait_for(lambda: is_released(again, sent[-1][2]), 30, "PUBREL comes again")
        publisher = MqttClient("publisher")
        await publisher.connect(broker.port)
        await publisher.publish("t/new", b"new", qos=2)
        with HandPipeline(kafka, prefix) as anew:
            await asyncio.to_thread(anew.carry)
        await wait_for(lambda: len(again.messages) == SENT, 30)
        assert again.messages[-1].payload == b"new"
        assert f"ends at {KEPT}, the client was sent what stood before {SENT}" in broker.output()
        again.close()
        await again.ended

    with (
        BrokerProcess(tmp_path / "data", settings=settings) as broker,
        HandPipeline(kafka, prefix) as pipeline,
    ):
        run(scenario(broker, pipeline), 300)


@pytest.mark.in_faults
@pytest.mark.promise("application-8")
def test_what_many_clients_had_under_way_comes_again_when_their_logs_have_lost_all(
    kafka: KafkaServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """From the first record of the message log on, and for all of them at once."""
    prefix = str(servers["kafka.prefix"])
    names = [f"app{number}" for number in range(20)]
    settings = servers | {"clients.application_ids": "app*"}

    async def scenario(broker: BrokerProcess, pipeline: HandPipeline) -> None:
        publisher = MqttClient("publisher")
        await publisher.connect(broker.port)
        clients = [await comes(broker, client_id=name, acknowledges=False) for name in names]
        for client in clients:
            await client.subscribe(Subscription("t/#", 2))
        for number in range(SENT):
            await publisher.publish(f"t/{number}", b"%d" % number, qos=1 + number % 2)
        await asyncio.to_thread(pipeline.carry)
        for client in clients:
            await wait_for(lambda client=client: len(client.messages) == SENT, 30)  # type: ignore[misc]
        sent = [{(one.payload, one.packet_id) for one in client.messages} for client in clients]
        await asyncio.to_thread(kafka.kill)
        broker.kill()
        for name in names:
            cut(kafka, f"{prefix}.msg.app.{name}", 0)
        await asyncio.to_thread(kafka.start)
        await asyncio.to_thread(broker.start)
        again = await asyncio.gather(*(comes(broker, client_id=name) for name in names))
        for client in again:
            await wait_for(lambda client=client: len(client.messages) == SENT, 30)  # type: ignore[misc]
        assert [{(one.payload, one.packet_id) for one in client.messages} for client in again] == sent
        assert broker.output_from(0).count(b"messages under way") == len(names)
        for client in again:
            client.close()
            await client.ended

    with (
        BrokerProcess(tmp_path / "data", settings=settings) as broker,
        HandPipeline(kafka, prefix) as pipeline,
    ):
        run(scenario(broker, pipeline), 300)


def is_released(client: MqttClient, packet_id: int) -> bool:
    return packet_id in [packet.packet_id for packet in client.received if isinstance(packet, Pubrel)]
