"""Shared subscriptions of APPLICATION clients, with logs in Kafka, on real sockets; the test plays the pipeline."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_dispatcher import KafkaDispatcher
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscription
from embermq.mqtt.wire.properties import Properties

KEPT = Properties(session_expiry_interval=86_400)
PARTITIONS = 6
TOPICS = 8
ROUNDS = 12
A_ROUND = 160

pytestmark = pytest.mark.promise("application-11")


class Place:
    """A broker and its pipeline."""

    pipeline: KafkaDispatcher

    def __init__(self, kafka: KafkaServer, redis: RedisServer, folder: Path) -> None:
        self.kafka = kafka
        self.prefix = kafka.prefix()
        settings = on_servers(kafka, redis, self.prefix) | {
            "clients.application_ids": "app*",
            "application.shared_partitions": PARTITIONS,
            "pipeline.enabled": "false",
        }
        self.broker = BrokerProcess(folder / "data", settings=settings)

    def topics(self) -> dict[str, int]:
        """Shared logs, and how many partitions they have."""
        found = self.kafka.admin.list_topics(timeout=30).topics
        begin = f"{self.prefix}.msg.app.shared."
        return {
            name.removeprefix(begin): len(topic.partitions)
            for name, topic in found.items()
            if name.startswith(begin)
        }


@pytest.fixture(scope="module")
def running_place(
    running_kafka: KafkaServer, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """One for all tests here, each with filters and client ids of its own."""
    running_kafka.heal()
    place = Place(running_kafka, module_redis, tmp_path_factory.mktemp("shared"))
    with place.broker:
        place.pipeline = KafkaDispatcher(running_kafka, place.prefix)
        with place.pipeline:
            yield place


@pytest.fixture
def place(running_place: Place) -> Place:
    running_place.kafka.heal()
    return running_place


class Worker:
    """One member that takes its time, goes and comes; it knows a QoS 2 message by its packet id until PUBREL, as its
    session does."""

    def __init__(self, place: Place, client_id: str, share: str, came: list[Publish], random: Random) -> None:
        self.place = place
        self.client_id = client_id
        self.share = share
        self.came = came
        self.random = random
        self.open_ids: set[int] = set()
        self.count = 0
        self.holds = False
        """Answers nothing until it comes again."""
        self.client: MqttClient

    async def comes(self) -> None:
        self.holds = False
        client = self.client = MqttClient(self.client_id, acknowledges=False)
        client.on_packet = lambda packet: self._take(client, packet)
        connack = await client.connect(self.place.broker.port, clean_start=False, properties=KEPT)
        assert connack.reason_code == 0, connack
        if not connack.session_present:
            self.open_ids.clear()
            assert await client.subscribe(Subscription(self.share, 2)) == (2,)

    def _take(self, client: MqttClient, packet: Packet) -> None:
        answer: Packet | None = None
        if isinstance(packet, Publish) and packet.qos == 1:
            self._keep(packet)
            answer = Puback(packet.packet_id)
        elif isinstance(packet, Publish):
            if packet.packet_id not in self.open_ids:
                self.open_ids.add(packet.packet_id)
                self._keep(packet)
            answer = Pubrec(packet.packet_id)
        elif isinstance(packet, Pubrel):
            self.open_ids.discard(packet.packet_id)
            answer = Pubcomp(packet.packet_id)
        if answer is not None and not self.holds:
            delay_s = self.random.random() * 0.03
            asyncio.get_running_loop().call_later(delay_s, self._answer, client, answer)

    def _keep(self, packet: Publish) -> None:
        self.came.append(packet)
        self.count += 1

    def _answer(self, client: MqttClient, packet: Packet) -> None:
        if client is self.client and client.is_open:
            client.send(packet)


async def publishes(place: Place, root: str, first: int, count: int) -> None:
    """On topics in turn, QoS 1 and 2 by topic; all are acknowledged when this returns."""
    publisher = MqttClient(f"publisher-{root}", keeps=False)
    await publisher.connect(place.broker.port)
    await asyncio.gather(
        *(
            publisher.publish(f"{root}/{number % TOPICS}", b"%06d" % number, qos=1 + number % 2)
            for number in range(first, first + count)
        )
    )
    publisher.close()


async def all_take_part(place: Place, workers: list[Worker], came: list[Publish]) -> int:
    """Publishes until the group has given each member a partition that a topic is in; returns how many. Asked before
    any of them goes: Kafka takes longer to share partitions out anew than they stay away, so nobody can say who gets
    how much then."""
    count = 0

    def all_came() -> bool:
        return len({one.payload for one in came}) == count

    while not all(worker.count for worker in workers):
        await publishes(place, "load", count, TOPICS)
        count += TOPICS
        await wait_for(all_came, 60, "all have come")
    return count


def in_topics(messages: list[Publish]) -> dict[str, list[bytes]]:
    """First copies, in the order in which they came."""
    found: dict[str, dict[bytes, None]] = {}
    for message in messages:
        found.setdefault(message.topic, {}).setdefault(message.payload)
    return {topic: list(payloads) for topic, payloads in found.items()}


@pytest.mark.promise("application-8")
def test_members_come_and_go_under_load_and_the_broker_is_killed(place: Place, seed: int) -> None:
    """Nothing is lost, QoS 2 comes once and QoS 1 at least once, topics keep their order; what the pipeline
    repeats is not sent again."""

    async def scenario() -> None:
        random, delays = (
            Random(seed),
            Random(seed + 1),
        )  # who goes does not depend on how many answers there were
        came: list[Publish] = []
        workers = [Worker(place, f"appload{n}", "$share/load/load/#", came, delays) for n in range(3)]
        for worker in workers:
            await worker.comes()
        begun = await all_take_part(place, workers, came)
        for number in range(ROUNDS):
            for worker in workers:
                worker.holds = number == ROUNDS // 2
            await publishes(place, "load", begun + number * A_ROUND, A_ROUND)
            if number == ROUNDS - 2:  # the pipeline is killed and begins again further back
                await asyncio.to_thread(place.pipeline.repeat, 3 * A_ROUND)
            if number == ROUNDS // 2:
                await wait_for(lambda: any(one.open_ids for one in workers), 30, "QoS 2 is under way")
                place.broker.kill()
                place.broker.start()
                for worker in workers:
                    await worker.comes()
                continue
            worker = random.choice(workers)
            worker.client.abort()
            if number % 3:
                await worker.comes()
        for worker in workers:
            if not worker.client.is_open:
                await worker.comes()
        total = begun + ROUNDS * A_ROUND
        await wait_for(lambda: len({one.payload for one in came}) == total, 60, "all have come")
        await wait_for(lambda: not any(worker.open_ids for worker in workers), 30, "QoS 2 is finished")
        counted = Counter(message.payload for message in came if message.qos == 2)
        assert set(counted.values()) == {1}
        assert len(counted) == total // 2
        for topic, payloads in in_topics([one for one in came if not one.dup]).items():
            if int(topic[-1]) % 2 == 0:
                assert payloads == sorted(payloads), topic

    run(scenario())


def test_a_log_lives_from_the_first_subscription_to_the_last(place: Place) -> None:
    async def scenario() -> None:
        assert "life.mlw" not in place.topics()
        one = MqttClient("applife1")
        await one.connect(place.broker.port, clean_start=False, properties=KEPT)
        assert await one.subscribe(
            Subscription("$share/a/life/#", 1), Subscription("$share/b/life/#", 1)
        ) == (1, 1)
        assert place.topics()["life.mlw"] == PARTITIONS
        await publishes(place, "life", 0, 20)
        await wait_for(lambda: len(one.messages) == 40, 30, "both groups get all of it")
        await one.unsubscribe("$share/a/life/#")
        await publishes(place, "life", 20, 5)
        await wait_for(lambda: len(one.messages) == 45, 30, "one group is left")
        await publishes(place, "life", 25, 5)
        await one.unsubscribe("$share/b/life/#")
        await wait_for(lambda: "life.mlw" not in place.topics(), 30, "it is gone")

    run(scenario())
