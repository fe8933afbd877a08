"""A Redis that loses what it has confirmed a moment ago: the power goes between two syncs, or a replica is promoted
that had not heard of it. Nothing that was acknowledged is lost, QoS 2 comes once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from tests.integration.conftest import quiet
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import arrived, client, gone, kept, talk
from tests.support.kafka_server import KafkaServer
from tests.support.metrics import metric
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_for, wait_until

from embermq.adapters.redis.floor_marks import MARK_KEY
from embermq.formats.redis_layout import client_keys
from embermq.mqtt.wire.packets import Pubrel, Subscription

KEPT, LOST = range(10), range(10, 25)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as found:
        yield found


def make_broker(
    data_dir: Path, kafka: KafkaServer, redis: RedisServer | RedisCluster, **settings: object
) -> BrokerProcess:
    return BrokerProcess(data_dir, settings={**on_servers(kafka, redis), "redis.settle_s": 30, **settings})


def numbers(payloads: list[bytes]) -> list[int]:
    return [int(payload) for payload in payloads]


async def subscribes(broker: BrokerProcess, client_id: str) -> None:
    found = await kept(broker, client_id)
    await found.subscribe(Subscription("t", 2))
    await gone(found)


async def subscribes_elsewhere(broker: BrokerProcess, redis_cluster: RedisCluster) -> None:
    """Clients on all other masters."""
    home = redis_cluster.master_of(client_keys("away", "").messages)
    left = {node.port for node in redis_cluster.masters()} - {home.port}
    for number in count():
        port = redis_cluster.master_of(client_keys(f"c{number}", "").messages).port
        if port in left:
            left.remove(port)
            found = await kept(broker, f"c{number}")
            await found.subscribe(Subscription("elsewhere", 2))
            await gone(found)
        if not left:
            return


def publish(broker: BrokerProcess, those: range, node: RedisServer, *, stored: int) -> None:
    """Acknowledged by the broker, and confirmed by Redis."""

    async def dialogue() -> None:
        publisher = await client(broker, "publisher")
        for number in those:
            await publisher.publish("t", b"%d" % number, qos=1 + number % 2)

    talk(dialogue)
    key = client_keys("away", "").messages
    wait_until(lambda: node.ask("ZCARD", key) == stored, 20, f"{stored} messages are in Redis")
    wait_until(lambda: metric(broker, "session_store_waiting_ticks") == 0, 20)


class Tail:
    """The end of a Redis's append-only file, from now on."""

    def __init__(self, server: RedisServer) -> None:
        (self._path,) = server.folder.glob("appendonlydir/*.incr.aof")
        self._server = server
        wait_until(lambda: b"aof_buffer_length:0\r" in server.ask("INFO", "persistence"), 30)
        self._size = self._path.stat().st_size

    def lose(self) -> None:
        """The power goes, and comes back: what was written since was never synced."""
        self._server.kill()
        assert self._path.stat().st_size > self._size
        with self._path.open("r+b") as file:
            file.truncate(self._size)
        self._server.start()


@pytest.mark.promise("repositories-1", "repositories-4", "device-9")
@pytest.mark.parametrize("broker_dies", [False, True])
def test_a_redis_without_its_last_writes(
    kafka: KafkaServer, server: RedisServer, tmp_path: Path, broker_dies: bool
) -> None:
    """A broker that lives sends them again; one that dies with it reads its log again."""
    with make_broker(tmp_path / "data", kafka, server) as broker:
        talk(lambda: subscribes(broker, "away"))
        publish(broker, KEPT, server, stored=len(KEPT))
        tail = Tail(server)
        publish(broker, LOST, server, stored=len(KEPT) + len(LOST))
        if broker_dies:
            broker.kill()
        tail.lose()
        if broker_dies:
            broker.start()
        else:
            wait_until(lambda: metric(broker, "session_store_resent") > 0, 20)
        check(broker)
        quiet(broker)


def check(broker: BrokerProcess) -> None:
    async def reads() -> None:
        expected = [*KEPT, *LOST]
        found = await kept(broker, "away")
        assert sorted(numbers(await arrived(found, len(expected)))) == expected
        await found.ping()
        of_qos_2 = [int(message.payload) for message in found.messages if message.qos == 2]
        assert of_qos_2 == [number for number in expected if number % 2]

    talk(reads)


@pytest.mark.promise("repositories-1", "repositories-4", "device-9")
def test_what_was_consumed_is_not_sent_again(kafka: KafkaServer, server: RedisServer, tmp_path: Path) -> None:
    """The acknowledgements are lost, PUBCOMPs among them."""
    with make_broker(tmp_path / "data", kafka, server) as broker:
        talk(lambda: subscribes(broker, "away"))
        publish(broker, KEPT, server, stored=len(KEPT))
        tail = Tail(server)

        async def consumes() -> None:
            found = await kept(broker, "away")
            assert numbers(await arrived(found, len(KEPT))) == [*KEPT]
            await wait_for(
                lambda: sum(isinstance(packet, Pubrel) for packet in found.received) == len(KEPT) // 2
            )
            await found.ping()
            await gone(found)

        talk(consumes)
        wait_until(lambda: server.ask("ZCARD", client_keys("away", "").messages) == 0, 20)
        tail.lose()
        wait_until(lambda: metric(broker, "session_store_resent") > 0, 20)

        async def again() -> None:
            found = await kept(broker, "away")
            publisher = await client(broker, "publisher")
            await publisher.publish("t", b"99", qos=2)
            assert numbers(await arrived(found, 1)) == [99]

        talk(again)
        quiet(broker)


@pytest.mark.promise("repositories-1")
def test_a_new_message_is_no_repeat_of_one_whose_release_is_lost(
    kafka: KafkaServer, server: RedisServer, tmp_path: Path
) -> None:
    """The broker dies with its Redis: that the packet id had been released nobody knows any more but the client."""

    async def publishes(payload: bytes) -> None:
        publisher = await kept(broker, "publisher")
        assert await publisher.publish("t", payload, qos=2) < 0x80  # under packet id 1, with each connection
        await gone(publisher)

    async def reads() -> None:
        found = await kept(broker, "away")
        assert await arrived(found, 3) == [b"0", b"1", b"2"]

    with make_broker(tmp_path / "data", kafka, server) as broker:
        talk(lambda: subscribes(broker, "away"))
        talk(lambda: publishes(b"0"))
        tail = Tail(server)
        talk(lambda: publishes(b"1"))
        wait_until(lambda: metric(broker, "session_store_waiting_ticks") == 0, 20)
        broker.kill()
        tail.lose()
        broker.start()
        talk(lambda: publishes(b"2"))
        talk(reads)
        quiet(broker)


@pytest.mark.promise("repositories-4")
def test_a_redis_that_has_lost_more_than_can_be_sent_again_is_told_and_repaired_at_the_next_start(
    kafka: KafkaServer, server: RedisServer, tmp_path: Path
) -> None:
    with make_broker(tmp_path / "data", kafka, server, **{"redis.settle_s": 0.2}) as broker:
        talk(lambda: subscribes(broker, "away"))
        publish(broker, KEPT, server, stored=len(KEPT))
        tail = Tail(server)
        publish(broker, LOST, server, stored=len(KEPT) + len(LOST))
        marks: set[int] = set()

        async def more() -> None:
            publisher = await client(broker, "publisher")
            await publisher.publish("nobody", b"", qos=1)

        def is_marked() -> bool:
            """Two marks are past what will be lost: the older of them is beyond doubt."""
            talk(more)
            marks.add(int(server.ask("GET", MARK_KEY) or 0))
            return sum(mark > LOST[-1] for mark in marks) > 1

        wait_until(is_marked, 30, poll_s=0.3)
        tail.lose()
        wait_until(lambda: "older than redis.settle_s" in broker.output(), 20)
        assert metric(broker, "session_store_failing") == 1
        broker.kill()
        broker.start()
        assert metric(broker, "redelivered_after_start") >= len(LOST)
        check(broker)
        quiet(broker)


@pytest.mark.promise("repositories-4")
def test_a_mark_that_somebody_deletes_means_that_all_is_gone(
    kafka: KafkaServer, server: RedisServer, tmp_path: Path
) -> None:
    """Without it nobody knows what else is gone. The server was not restarted."""
    with make_broker(tmp_path / "data", kafka, server, **{"redis.settle_s": 0.2}) as broker:
        talk(lambda: subscribes(broker, "away"))
        marks: set[int] = set()

        async def more() -> None:
            publisher = await client(broker, "publisher")
            await publisher.publish("t", b"", qos=1)

        def goes_on() -> bool:
            talk(more)
            marks.add(int(server.ask("GET", MARK_KEY) or 0))
            return len(marks) > 3

        wait_until(goes_on, 30, poll_s=0.3)
        server.ask("DEL", MARK_KEY)

        def is_told() -> bool:
            talk(more)
            return "was emptied" in broker.output() and "has again what memory had" in broker.output()

        wait_until(is_told, 20, poll_s=0.3)
        wait_until(lambda: server.ask("EXISTS", MARK_KEY), 20, "the mark is back")


@pytest.mark.promise("repositories-1", "repositories-4", "device-9")
def test_a_replica_that_had_not_heard_of_it_is_promoted(
    kafka: KafkaServer, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    """Later than `redis.settle_s` after its master's death, while other masters are busy."""
    settle_s = 1.0

    async def others_are_busy() -> None:
        loop = asyncio.get_running_loop()
        publisher = await client(broker, "busy")
        until_s = loop.time() + 2 * settle_s
        while loop.time() < until_s:
            await publisher.publish("elsewhere", b"x", qos=2)

    with make_broker(tmp_path / "data", kafka, redis_cluster, **{"redis.settle_s": settle_s}) as broker:
        talk(lambda: subscribes(broker, "away"))
        talk(lambda: subscribes_elsewhere(broker, redis_cluster))
        key = client_keys("away", "").messages
        master = redis_cluster.master_of(key)
        replica = redis_cluster.replica_of(master)
        publish(broker, KEPT, master, stored=len(KEPT))
        master.ask("WAIT", 1, 10_000)
        replica.pause()
        master.ask("CLIENT", "KILL", "TYPE", "REPLICA")  # nothing waits for it in a socket
        publish(broker, LOST, master, stored=len(KEPT) + len(LOST))
        master.kill()
        talk(others_are_busy)
        replica.resume()
        redis_cluster.wait_promoted(replica)
        assert redis_cluster.master_of(key) is replica
        wait_until(lambda: metric(broker, "session_store_resent") > 0, 30)
        check(broker)
        quiet(broker)
