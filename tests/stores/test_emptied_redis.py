"""A Redis that loses everything under a running broker: what memory has is written anew, what it has not is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.integration.conftest import quiet
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import DAY_S, arrived, client, gone, kept, make, present, talk
from tests.support.kafka_dispatcher import KafkaDispatcher
from tests.support.kafka_server import KafkaServer
from tests.support.metrics import metric
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_until

from embermq.admin.operations import REPLAY_MESSAGES
from embermq.app.control import ControlClient
from embermq.formats.log_record import encode_record
from embermq.formats.redis_layout import REPLAYS_KEY, SCHEMA_KEY, client_keys
from embermq.model.message import Message
from embermq.mqtt.wire.packets import Disconnect, Pubcomp, Pubrec, Pubrel, Subscription
from embermq.mqtt.wire.properties import Properties

TOLD = "has again what memory had"
NO_MATCHING_SUBSCRIBERS = 0x10


@pytest.fixture
def broker(servers: dict[str, object], tmp_path: Path) -> Iterator[BrokerProcess]:
    """Not started."""
    found = BrokerProcess(tmp_path / "data", settings=servers)
    try:
        yield found
        quiet(found)
    finally:
        found.close()


def at_rest(broker: BrokerProcess) -> None:
    wait_until(lambda: metric(broker, "session_store_waiting_ticks") == 0, 30, "all is stored")


def replay(broker: BrokerProcess, *messages: bytes) -> int:
    """Messages 0 and on of one; returns the number of the next."""
    with ControlClient(broker.data_dir) as control:
        asked = control.ask(REPLAY_MESSAGES, replay="one", first=0, messages=messages, client="")
    return int(asked["next"])


def written_anew(broker: BrokerProcess, times: int = 1) -> None:
    wait_until(lambda: broker.output().count(TOLD) == times, 30, "what memory has is written anew")
    at_rest(broker)


async def prepare(broker: BrokerProcess) -> None:
    """`reads` is there, with a message in flight; `sleeps` is owed nothing; `owed` has messages in Redis alone."""
    publisher = await client(broker, "p")
    for client_id in ("sleeps", "owed"):
        found = await kept(broker, client_id)
        await found.subscribe(Subscription(client_id, 1))
        await gone(found)
    await publisher.publish("owed", b"lost", qos=1)
    await publisher.publish("kept", b"retained", qos=1, retain=True)
    await publisher.publish("$queue/work", b"job", qos=1)


async def use(broker: BrokerProcess) -> None:
    """All that memory had is there."""
    publisher = await client(broker, "p")
    assert not present(await kept(broker, "owed"))
    await publisher.publish("sleeps", b"1", qos=1)
    sleeps = await kept(broker, "sleeps")
    assert present(sleeps) and await arrived(sleeps, 1) == [b"1"]
    fresh = await client(broker, "fresh")
    await fresh.subscribe(Subscription("kept", 1), Subscription("$queue/work", 1))
    assert set(await arrived(fresh, 2)) == {b"retained", b"job"}


@pytest.mark.promise("repositories-4")
@pytest.mark.parametrize("restarts", [False, True], ids=["flushall", "without its file"])
def test_what_memory_has_is_written_anew(
    broker: BrokerProcess, redis_server: RedisServer, restarts: bool
) -> None:
    broker.start()

    async def before() -> None:
        await prepare(broker)
        holder = await kept(broker, "reads", acknowledges=False)
        await holder.subscribe(Subscription("two", 2))
        publisher = await client(broker, "p2")
        await publisher.publish("two", b"in flight", qos=2)
        await arrived(holder, 1)
        assert await asyncio.to_thread(replay, broker, encode_record(Message("r", b"", 1, False, "p", 5, 0)))
        await asyncio.to_thread(at_rest, broker)
        if restarts:
            await asyncio.to_thread(lose_all, redis_server)
        else:
            redis_server.ask("FLUSHALL")
        await asyncio.to_thread(written_anew, broker)
        assert metric(broker, "sessions_lost") == 1
        assert "ended with their messages: 'owed'" in broker.output()
        assert redis_server.ask("EXISTS", "s:ol:{owed}") == 0
        found = ("s:ol:{sleeps}", "s:s:{sleeps}", "t:r:{kept}", "q:s:{work}", REPLAYS_KEY)
        assert redis_server.ask("EXISTS", *found) == len(found)

    async def after() -> None:
        back = await kept(broker, "reads")
        assert present(back) and await arrived(back, 1) == [b"in flight"]
        assert back.messages[0].dup
        await use(broker)

    talk(before)
    assert metric(broker, "session_store_failing") == 0
    broker.kill()
    broker.start()
    talk(after)
    assert replay(broker) == 1


@pytest.mark.promise("application-4")
def test_applications_and_attempts_of_queues_go_on_where_they_were(
    broker: BrokerProcess, kafka: KafkaServer, redis_server: RedisServer
) -> None:
    broker.settings["clients.application_ids"] = "app*"
    broker.start()

    async def before(pipeline: KafkaDispatcher) -> None:
        publisher = await client(broker, "p")
        app = await kept(broker, "app", acknowledges=False)
        await app.subscribe(Subscription("t", 2))
        for number in range(4):
            await publisher.publish("t", b"%d" % number, qos=2)
        await asyncio.to_thread(pipeline.carry)
        await arrived(app, 4)
        for message in app.messages[:2]:
            released = app.expect(Pubrel, message.packet_id)
            app.send(Pubrec(message.packet_id))
            await released
            app.send(Pubcomp(message.packet_id))
        await app.ping()
        await publisher.publish("$queue/work", b"job", qos=1)
        await asyncio.to_thread(at_rest, broker)
        redis_server.ask("FLUSHALL")
        await asyncio.to_thread(written_anew, broker)
        broker.kill()

    async def after() -> None:
        app = await kept(broker, "app")
        assert present(app) and await arrived(app, 2) == [b"2", b"3"]
        assert all(message.dup for message in app.messages)
        publisher = await client(broker, "p")
        await publisher.publish("$queue/work", b"more", qos=1)
        worker = await client(broker, "worker")
        await worker.subscribe(Subscription("$queue/work", 1))
        assert await arrived(worker, 2) == [b"job", b"more"]

    with KafkaDispatcher(kafka, str(broker.settings["kafka.prefix"])) as pipeline:
        talk(lambda: before(pipeline))
        broker.start()
        talk(after)


def lose_all(server: RedisServer) -> None:
    server.kill()
    for path in server.folder.glob("appendonlydir/*"):
        path.unlink()
    server.start()


def test_the_client_that_comes_first_hears_of_no_session_that_is_gone(
    broker: BrokerProcess, redis_server: RedisServer
) -> None:
    """Nothing but its CONNECT tells the broker that Redis is empty, unless that was looked at just before: it is let
    in then, with a new session."""
    broker.start()

    async def dialogue() -> None:
        await prepare(broker)
        await asyncio.to_thread(at_rest, broker)
        redis_server.ask("FLUSHALL")
        comes = make("owed")
        with suppress(ConnectionError):
            connack = await comes.connect(
                broker.port, clean_start=False, properties=Properties(session_expiry_interval=DAY_S)
            )
            assert connack.reason_code or not connack.session_present
            if not connack.reason_code:
                comes.send(Disconnect(0, Properties(session_expiry_interval=0)))
                await comes.ended
        await asyncio.to_thread(written_anew, broker)
        assert (
            await (await client(broker, "p")).publish("owed", b"for nobody", qos=1) == NO_MATCHING_SUBSCRIBERS
        )
        await use(broker)

    talk(dialogue)


@pytest.mark.promise("repositories-4")
def test_what_was_acknowledged_before_anybody_knew_is_kept(
    broker: BrokerProcess, redis_server: RedisServer
) -> None:
    """The log has it, so its publisher was told; Redis refuses it, and that is how it is noticed."""
    broker.start()

    async def dialogue() -> None:
        away = await kept(broker, "away")
        await away.subscribe(Subscription("t", 2))
        await gone(away)
        publisher = await client(broker, "p")
        await asyncio.to_thread(at_rest, broker)
        redis_server.ask("FLUSHALL")
        sent = [publisher.publish("t", b"%d" % number, qos=1 + number % 2) for number in range(20)]
        assert set(await asyncio.gather(*sent)) == {0}
        await asyncio.to_thread(written_anew, broker)
        assert metric(broker, "sessions_lost") == 0
        await publisher.publish("t", b"20", qos=1)
        await asyncio.to_thread(at_rest, broker)

    async def after() -> None:
        away = await kept(broker, "away")
        assert present(away) and await arrived(away, 21) == [b"%d" % number for number in range(21)]

    talk(dialogue)
    broker.kill()
    broker.start()
    talk(after)


def test_it_may_be_emptied_again_and_again(broker: BrokerProcess, redis_server: RedisServer) -> None:
    broker.start()
    talk(lambda: prepare(broker))
    for times in range(1, 4):
        at_rest(broker)
        redis_server.ask("FLUSHALL")
        written_anew(broker, times)
    talk(lambda: use(broker))
    assert broker.stop() == 0
    broker.start()


def test_a_master_that_comes_back_empty_loses_its_slots_alone(
    kafka: KafkaServer, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "data", settings=on_servers(kafka, redis_cluster)) as broker:
        names = [f"s{number}" for number in range(30)]

        async def before() -> None:
            publisher = await client(broker, "p")
            for name in names:
                found = await kept(broker, name)
                await found.subscribe(Subscription(name, 1), Subscription("all", 1))
                await gone(found)
                if name.endswith("0"):
                    await publisher.publish(name, b"waits", qos=1)

        talk(before)
        at_rest(broker)
        emptied = redis_cluster.masters()[0]
        lost = {name for name in names if redis_cluster.master_of(client_keys(name, "").session) is emptied}
        emptied.ask("FLUSHALL")
        written_anew(broker)
        owed = {name for name in names if name.endswith("0")}
        assert metric(broker, "sessions_lost") == len(lost & owed)
        broker.kill()
        broker.start()

        async def after() -> None:
            publisher = await client(broker, "p")
            await publisher.publish("all", b"1", qos=1)
            for name in names:
                found = await kept(broker, name)
                assert present(found) is (name not in lost & owed), name
                if present(found):
                    expected = [b"waits", b"1"] if name in owed else [b"1"]
                    assert await arrived(found, len(expected)) == expected

        talk(after)


def test_a_crash_before_all_is_written_anew_is_noticed(
    kafka: KafkaServer, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    """One master was emptied, and another one, that does not answer, holds up what is written anew."""
    with BrokerProcess(tmp_path / "data", settings=on_servers(kafka, redis_cluster)) as broker:
        schema = redis_cluster.master_of(SCHEMA_KEY)
        emptied, paused = (master for master in redis_cluster.masters() if master is not schema)
        name = next(
            f"s{number}" for number in range(100) if redis_cluster.master_of(f"s:ol:{{s{number}}}") is paused
        )

        async def before() -> None:
            found = await kept(broker, name)
            await found.subscribe(Subscription("t", 1))
            await gone(found)
            publisher = await client(broker, "p")
            await asyncio.to_thread(at_rest, broker)
            paused.pause()
            await publisher.publish("t", b"waits", qos=1)

        try:
            talk(before)
            emptied.ask("FLUSHALL")
            wait_until(lambda: emptied.ask("DBSIZE"), 30, "the marks are back")
            broker.kill()
        finally:
            paused.resume()
        assert TOLD not in broker.output()
        broker.launch()
        assert broker.wait() == 1
        assert "was emptied, with the sessions" in broker.output()


def test_a_master_that_was_emptied_meanwhile_is_refused(
    kafka: KafkaServer, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "data", settings=on_servers(kafka, redis_cluster)) as broker:
        assert broker.stop() == 0
        redis_cluster.masters()[0].ask("FLUSHALL")
        broker.launch()
        assert broker.wait() == 1
        assert "kafka.adopt_log" in broker.output()
        broker.settings["kafka.adopt_log"] = "true"
        broker.start()
