"""What people and machines do to a Redis that has session data: away while clients storm, full, read-only, emptied."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.integration.conftest import quiet
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import DAY_S, arrived, client, flood, gone, kept, make, passed, present, talk
from tests.support.metrics import metric
from tests.support.mqtt_client import ConnectionEnded, MqttClient
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for, wait_until

from embermq.mqtt.wire.packets import Subscription
from embermq.mqtt.wire.properties import Properties

STORED = 10_000
SERVER_UNAVAILABLE = 0x88


@pytest.fixture
def broker(redis_server: RedisServer, servers: dict[str, object], tmp_path: Path) -> Iterator[BrokerProcess]:
    """Started. It must be silent."""
    found = BrokerProcess(
        tmp_path / "data",
        settings={
            **servers,
            "redis.command_timeout_s": 1,
            "device.queue_limit": 20_000,
        },
        constants={"embermq.app.kafka_log.CONNECT_WAIT_S": 1},
    )
    try:
        found.start()
        yield found
        quiet(found)
    finally:
        redis_server.heal()
        redis_server.ask("CONFIG", "SET", "maxmemory", 0)
        found.close()


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def away(broker: BrokerProcess, *, topic: str = "t", qos: int = 1) -> None:
    """`absent` has subscribed and left."""
    absent = await kept(broker, "absent")
    await absent.subscribe(Subscription(topic, qos))
    await gone(absent)


async def back_again(broker: BrokerProcess, client_id: str) -> MqttClient:
    """As soon as Redis is, whose answers the broker waits for a second here: refused until then, as it has to be."""
    while True:
        found = make(client_id)
        connack = await found.connect(broker.port, clean_start=False, expiry_s=DAY_S)
        if connack.reason_code == 0:
            return found
        assert connack.reason_code == SERVER_UNAVAILABLE


async def stored(broker: BrokerProcess) -> None:
    await asyncio.to_thread(
        wait_until, lambda: metric(broker, "session_store_waiting_ticks") == 0, 60, "all is stored"
    )


def test_a_storm_of_takeovers_while_redis_is_away_leaves_one(
    broker: BrokerProcess, redis_server: RedisServer
) -> None:
    async def dialogue() -> None:
        await away(broker)
        publisher = await client(broker, "p")
        redis_server.pause()
        for number in range(100):
            assert await publisher.publish("t", b"%d" % number, qos=1) < 0x80
        storm = [make("absent") for _ in range(300)]
        properties = Properties(session_expiry_interval=1_000)

        async def enter(number: int) -> bool:
            with suppress(ConnectionEnded):
                found = storm[number]
                connack = await found.connect(broker.port, clean_start=False, properties=properties)
                return connack.reason_code == 0
            return False

        entered = await asyncio.gather(*map(enter, range(len(storm))))
        assert not any(entered)
        redis_server.resume()
        back = await back_again(broker, "absent")
        assert present(back)
        assert await arrived(back, 100) == numbered(100)
        await stored(broker)
        await wait_for(
            lambda: redis_server.ask("KEYS", "{absent}_messages*") == [], 30, "what is acknowledged is gone"
        )

    talk(dialogue)
    assert metric(broker, "session_store_fenced_total") == 0


def test_a_clean_start_and_the_end_of_a_session_while_its_writes_wait(
    broker: BrokerProcess, redis_server: RedisServer
) -> None:
    async def dialogue() -> None:
        await away(broker)
        short = await client(broker, "short", clean_start=False, expiry_s=1)
        await short.subscribe(Subscription("t", 1))
        await gone(short)
        publisher = await client(broker, "p")
        redis_server.pause()
        for number in range(50):
            assert await publisher.publish("t", b"%d" % number, qos=1) < 0x80
        fresh = make("absent")
        refused = await fresh.connect(
            broker.port, clean_start=True, properties=Properties(session_expiry_interval=1_000)
        )
        assert refused.reason_code == SERVER_UNAVAILABLE
        await passed(1.2)
        redis_server.resume()
        back = await back_again(broker, "absent")
        await back.subscribe(Subscription("t", 1))
        again = await back_again(broker, "short")
        assert not present(again)
        assert await publisher.publish("t", b"new", qos=1) < 0x80
        assert await arrived(back, 1) == [b"new"]
        assert again.messages == []
        await stored(broker)
        assert redis_server.ask("KEYS", "*_messages*") == []

    # Refused writes are not counted: on a slow machine answers come too late, and what is asked again is refused.
    talk(dialogue)


def test_ten_thousand_stored_messages_arrive_though_redis_starts_anew_meanwhile(
    broker: BrokerProcess, redis_server: RedisServer
) -> None:
    async def dialogue() -> None:
        await away(broker, qos=2)
        publisher = await client(broker, "p", keeps=False)
        await flood(publisher, "t", range(STORED))
        await stored(broker)
        back = await kept(broker, "absent")
        for share in (0.1, 0.5, 0.8):
            await arrived(back, int(share * STORED))
            redis_server.kill()
            await asyncio.to_thread(redis_server.start)
        assert await arrived(back, STORED) == numbered(STORED)
        await stored(broker)
        assert redis_server.ask("KEYS", "{absent}_messages*") == []

    talk(dialogue)


@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_the_broker_ends_in_bounded_time_and_loses_nothing(
    broker: BrokerProcess, redis_server: RedisServer, way: str
) -> None:
    """Somebody waits for CONNACK, something for its PUBREL, something for a client that is away."""

    async def before() -> None:
        await away(broker, qos=2)
        live = await kept(broker, "live")
        await live.subscribe(Subscription("t", 2))
        publisher = await client(broker, "p")
        if way == "killed":
            redis_server.kill()
        else:
            redis_server.pause()
        for number in range(50):
            assert await publisher.publish("t", b"%d" % number, qos=2 - number % 2) < 0x80
        waiting = make("absent")
        await waiting.open(broker.port)
        assert await asyncio.to_thread(broker.stop) == 0

    async def after() -> None:
        for client_id in ("absent", "live"):
            assert sorted(await arrived(await kept(broker, client_id), 50)) == sorted(numbered(50))

    talk(before)
    redis_server.heal()
    broker.start()
    talk(after)


def test_a_full_redis_loses_nothing(broker: BrokerProcess, redis_server: RedisServer) -> None:
    async def dialogue() -> None:
        await away(broker)
        live = await kept(broker, "live")
        await live.subscribe(Subscription("t", 1))
        publisher = await client(broker, "p")
        redis_server.ask("CONFIG", "SET", "maxmemory", "1mb")
        for number in range(200):
            assert await publisher.publish("t", b"%d" % number, qos=1) < 0x80
        assert await arrived(live, 200) == numbered(200)
        await wait_for(lambda: "OOM" in broker.output(), 30, "it is told")
        redis_server.ask("CONFIG", "SET", "maxmemory", 0)
        assert await arrived(await back_again(broker, "absent"), 200) == numbered(200)

    talk(dialogue)


def test_a_replica_is_refused_at_the_start(
    broker: BrokerProcess, redis_server: RedisServer, tmp_path: Path
) -> None:
    broker.stop()
    with RedisServer(
        tmp_path / "replica", settings={"replicaof": f"127.0.0.1 {redis_server.port}"}
    ) as replica:
        wait_until(lambda: replica.ask("EXISTS", "embermq:schema"), 30, "it has copied everything")
        broker.settings["stores.session"] = replica.url
        broker.launch()
        assert broker.wait() == 1
        assert "is a replica" in broker.output()


def test_sessions_that_somebody_deletes_are_told_of(broker: BrokerProcess, redis_server: RedisServer) -> None:
    async def dialogue() -> None:
        await away(broker)
        redis_server.ask("DEL", "s:ol:{absent}")
        publisher = await client(broker, "p")
        assert await publisher.publish("t", b"1", qos=1) < 0x80
        await wait_for(lambda: "it was deleted there" in broker.output(), 30, "it is told")

    talk(dialogue)
    assert "'absent'" in broker.output()
    assert metric(broker, "session_store_failing") == 1


def test_a_broker_on_a_copy_of_the_data_shuts_out_the_older_one(
    broker: BrokerProcess, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Both believe that the sessions are theirs; who took one over last has it, and the other says so."""

    async def before() -> None:
        await away(broker)

    async def on_the_copy() -> None:
        back = await kept(copy, "absent")
        assert present(back)
        await gone(back)
        publisher = await client(copy, "p")
        assert await publisher.publish("t", b"of the copy", qos=1) < 0x80

    async def on_the_older() -> None:
        publisher = await client(broker, "p")
        assert await publisher.publish("t", b"of the older one", qos=1) < 0x80
        await wait_for(lambda: "another broker" in broker.output(), 30, "it is told")

    async def at_last() -> None:
        back = await kept(copy, "absent")
        assert await arrived(back, 1) == [b"of the copy"]
        await back.ping()
        assert len(back.messages) == 1

    talk(before)
    broker.stop()
    shutil.copytree(broker.data_dir, tmp_path / "copy")
    broker.start()
    with BrokerProcess(tmp_path / "copy", settings=broker.settings) as copy:
        talk(on_the_copy)
        talk(on_the_older)
        assert metric(broker, "session_store_fenced_total") > 0
        talk(at_last)
        quiet(copy)
