"""APPLICATION clients of a broker whose log is in Kafka, on real sockets; the test plays the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_dispatcher import KafkaDispatcher
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_for

from embermq.delivery.application.lane import UNMARKED_MAX
from embermq.mqtt.wire.packets import Publish, Subscription
from embermq.mqtt.wire.properties import Properties

MESSAGES = 3_000
KEPT = Properties(session_expiry_interval=86_400)


class Place:
    """A broker and its pipeline."""

    pipeline: KafkaDispatcher

    def __init__(self, kafka: KafkaServer, redis: RedisServer, folder: Path) -> None:
        self.kafka = kafka
        self.prefix = kafka.prefix()
        settings = on_servers(kafka, redis, self.prefix) | {
            "clients.application_ids": "app*",
        }
        self.broker = BrokerProcess(folder / "data", settings=settings)

    async def comes(self, client_id: str, *, qos: int = 2, acknowledges: bool = True) -> MqttClient:
        client = MqttClient(client_id, acknowledges=acknowledges)
        connack = await client.connect(self.broker.port, clean_start=False, properties=KEPT)
        assert connack.reason_code == 0, connack
        if not connack.session_present:
            await client.subscribe(Subscription(f"{client_id}/#", qos))
        return client

    async def publishes(self, client_id: str, payloads: list[bytes], *, qos: int = 1) -> None:
        """On four topics in turn, so that there are two partitions with some."""
        publisher = MqttClient("publisher", keeps=False)
        await publisher.connect(self.broker.port)
        for begin in range(0, len(payloads), 500):
            part = payloads[begin : begin + 500]
            await asyncio.gather(
                *(publisher.publish(f"{client_id}/{int(one) % 4}", one, qos=qos) for one in part)
            )
        publisher.close()


@pytest.fixture(scope="module")
def running_place(
    running_kafka: KafkaServer, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """One for all tests here, each with a client id of its own."""
    running_kafka.heal()
    place = Place(running_kafka, module_redis, tmp_path_factory.mktemp("applications"))
    with place.broker:
        place.pipeline = KafkaDispatcher(running_kafka, place.prefix)
        yield place
        place.pipeline.close()


@pytest.fixture
def place(running_place: Place) -> Place:
    running_place.kafka.heal()
    return running_place


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def in_topics(messages: list[Publish]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for message in messages:
        found.setdefault(message.topic, []).append(int(message.payload))
    return found


@pytest.mark.promise("application-2", "application-3", "application-4", "application-5")
def test_who_was_away_gets_each_once_and_in_order(place: Place) -> None:
    async def scenario() -> None:
        client = await place.comes("app1")
        client.abort()
        await place.publishes("app1", numbered(MESSAGES))
        await place.publishes("app1", numbered(500, MESSAGES), qos=2)
        pipeline = place.pipeline
        await asyncio.to_thread(pipeline.carry)
        again = await place.comes("app1")
        total = MESSAGES + 500
        await wait_for(lambda: len(again.messages) >= total, 60, "all have come")
        await asyncio.to_thread(pipeline.write, pipeline.of("app1")[-700:])  # its last batch again
        await place.publishes("app1", numbered(1, total))
        await asyncio.to_thread(pipeline.carry)
        await wait_for(lambda: again.messages[-1].payload == b"%06d" % total, 30, "what came behind")
        found = in_topics(again.messages)
        assert found == {f"app1/{n}": list(range(n, total + (n == total % 4), 4)) for n in range(4)}
        assert not any(message.dup for message in again.messages)

    run(scenario())


@pytest.mark.promise("application-3", "application-8")
def test_a_killed_broker_resends_with_the_same_ids_skips_repeats_and_takes_latecomers(place: Place) -> None:
    async def scenario() -> None:
        (await place.comes("app2")).abort()
        await place.publishes("app2", numbered(40), qos=2)
        client = await place.comes("app2", acknowledges=False)
        pipeline = place.pipeline
        await asyncio.to_thread(pipeline.read)
        batch = pipeline.of("app2")
        late = [record for record in batch if int(record.value() or b"") % 10 == 3]
        rest = [record for record in batch if record not in late]
        await asyncio.to_thread(pipeline.write, rest)
        await wait_for(lambda: len(client.messages) == len(rest), 30, "all but the late ones")
        ids = {message.payload: message.packet_id for message in client.messages}
        place.broker.kill()
        await asyncio.to_thread(place.broker.start)
        again = await place.comes("app2")
        await wait_for(lambda: len(again.messages) >= len(rest), 30, "they come again")
        assert {message.payload: message.packet_id for message in again.messages} == ids
        assert all(message.dup for message in again.messages)
        await asyncio.to_thread(pipeline.write, batch)  # all of the batch, the late ones with it
        await wait_for(lambda: len(again.messages) >= 40, 30, "the late ones")
        await place.publishes("app2", numbered(1, 40))
        await asyncio.to_thread(pipeline.read)
        await asyncio.to_thread(pipeline.write, pipeline.of("app2")[40:])
        await wait_for(lambda: len(again.messages) > 40, 30, "the last one")
        behind = again.messages[len(rest) :]
        assert sorted(int(message.payload) for message in behind) == [3, 13, 23, 33, 40]
        assert not any(message.dup for message in behind)
        first = behind[0].packet_id
        assert first == max(ids.values()) + UNMARKED_MAX + 1

    run(scenario())


@pytest.mark.promise("application-3", "application-8")
@pytest.mark.parametrize("qos", [1, 2])
def test_who_is_there_does_not_wait_for_the_pipeline_and_gets_the_same_ids_after_a_kill(
    place: Place, qos: int
) -> None:
    async def scenario() -> None:
        name = f"appTail{qos}"
        client = await place.comes(name, acknowledges=False)
        await place.publishes(name, numbered(40), qos=qos)
        await wait_for(lambda: len(client.messages) == 40, 30, "all come, nothing is carried")
        ids = {message.payload: message.packet_id for message in client.messages}
        client.abort()
        await place.comes(name, acknowledges=False)  # its ids are stored by now
        place.broker.kill()
        await asyncio.to_thread(place.broker.start)
        again = await place.comes(name)
        await asyncio.to_thread(place.pipeline.carry)
        await wait_for(lambda: len(again.messages) == 40, 30, "they come again")
        assert {message.payload: message.packet_id for message in again.messages} == ids
        assert all(message.dup for message in again.messages)
        await asyncio.to_thread(place.pipeline.report)
        count = 40

        async def comes_at_once() -> bool:
            nonlocal count
            await place.publishes(name, numbered(1, count), qos=qos)
            count += 1
            with suppress(AssertionError):
                await wait_for(lambda: len(again.messages) == count, 1)
            return len(again.messages) == count

        while not await comes_at_once():
            await asyncio.to_thread(place.pipeline.carry)
            await asyncio.to_thread(place.pipeline.report)
        await asyncio.to_thread(place.pipeline.write, place.pipeline.of(name))
        await place.publishes(name, numbered(1, count), qos=qos)
        await wait_for(lambda: again.messages[-1].payload == b"%06d" % count, 30, "the last one")
        assert in_topics(again.messages) == {f"{name}/{n}": list(range(n, count + 1, 4)) for n in range(4)}

    run(scenario())


@pytest.mark.promise("application-3")
def test_reports_of_the_pipeline_let_the_log_be_trimmed(place: Place) -> None:
    async def scenario() -> None:
        client = await place.comes("app3")
        await place.publishes("app3", numbered(200))
        pipeline = place.pipeline
        await asyncio.to_thread(pipeline.carry)
        await asyncio.to_thread(pipeline.report)
        await wait_for(lambda: len(client.messages) == 200, 30, "all have come")
        log = f"{place.prefix}.msg.app.app3"
        await wait_for(lambda: pipeline.first_offset(log) == 200, 30, "it is trimmed")
        await asyncio.to_thread(pipeline.write, pipeline.of("app3"))
        await place.publishes("app3", numbered(1, 200))
        await asyncio.to_thread(pipeline.carry)
        await wait_for(lambda: len(client.messages) > 200, 30, "the next one")
        assert client.messages[-1].payload == b"000200"

    run(scenario())


def test_a_log_that_somebody_deletes_is_told_and_made_again(place: Place) -> None:
    async def scenario() -> None:
        client = await place.comes("app4")
        log = f"{place.prefix}.msg.app.app4"
        await asyncio.to_thread(place.kafka.delete_topic, log)
        await asyncio.wait_for(client.ended, 30)
        assert client.disconnect_received is not None
        assert client.disconnect_received.reason_code == 0x89
        again = await place.comes("app4")
        await place.publishes("app4", numbered(3))
        pipeline = place.pipeline
        await asyncio.to_thread(pipeline.carry)
        await wait_for(lambda: len(again.messages) == 3, 30, "it goes on")
        assert f"{log} is gone: it was deleted" in place.broker.output()

    run(scenario())
