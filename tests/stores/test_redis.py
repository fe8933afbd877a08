"""Sessions on a real Redis, as a person with redis-cli and an operator see them: keys, outages, what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.test_kafka_cut_log import cut
from tests.integration.conftest import quiet
from tests.stores.session_stores import RedisCopy
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import DAY_S, arrived, client, gone, kept, make, present, talk
from tests.support.forked_program import run_program
from tests.support.kafka_server import KafkaServer
from tests.support.metrics import metric
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_for, wait_until

from embermq.mqtt.wire.packets import Publish, Pubrec, Subscription, Will
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

SERVER_UNAVAILABLE = 0x88


@pytest.fixture
def broker(servers: dict[str, object], tmp_path: Path) -> Iterator[BrokerProcess]:
    """Not started. It must be silent."""
    found = BrokerProcess(
        tmp_path / "data",
        settings={**servers, "redis.command_timeout_s": 1},
        constants={"embermq.app.kafka_log.CONNECT_WAIT_S": 1},
    )
    try:
        yield found
        quiet(found)
    finally:
        found.close()


def keys(server: RedisServer) -> dict[str, str]:
    """Every key with its type."""
    names = [bytes(name).decode() for name in server.ask("KEYS", "*")]
    return {name: bytes(server.ask("TYPE", name)).decode() for name in names}


def ready(broker: BrokerProcess) -> tuple[int, dict[str, str]]:
    address = f"http://127.0.0.1:{broker.http_port}/ready"
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status, json.load(answer)["parts"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["parts"]


def refused(broker: BrokerProcess) -> str:
    """What the broker says when it does not start."""
    broker.launch()
    assert broker.wait() == 1
    return broker.output()


@pytest.mark.promise("device-2", "repositories-9")
def test_a_person_with_redis_cli_finds_what_the_documents_say(
    broker: BrokerProcess, redis_server: RedisServer
) -> None:
    broker.start()

    async def dialogue() -> None:
        will = Will("wills", b"gone", 1, False, Properties(will_delay_interval=600))
        holder = await kept(broker, "pump{7}", acknowledges=False, will=will)
        await holder.subscribe(Subscription("fleet/#", 2))
        publisher = await kept(broker, "p")
        await publisher.publish("fleet/a", b"sent", qos=2)
        await arrived(holder, 1)
        await gone(holder)
        await publisher.publish("fleet/b", b"waits", qos=1)
        await publisher.publish("status", b"kept", qos=1, retain=True)
        await publisher.subscribe(Subscription("nothing", 1))
        receiver = await kept(broker, "r", acknowledges=False)
        answer = receiver.expect(Pubrec, 77)
        receiver.send(Publish("elsewhere", b"not released", 2, 77))
        await answer

    talk(dialogue)
    wait_until(lambda: metric(broker, "session_store_waiting_ticks") == 0, 30, "all is stored")
    assert keys(redis_server) == {
        "embermq:floor": "string",
        "embermq:schema": "string",
        "embermq:log": "hash",
        "s:ol:{p}": "string",
        "s:ol:{r}": "string",
        "s:f:ri:{r}": "hash",
        "s:s:{p}": "hash",
        "s:f:ri:{p}": "hash",
        "s:ol:{pump%7B7%7D}": "string",
        "s:s:{pump%7B7%7D}": "hash",
        "s:w:{pump%7B7%7D}": "string",
        "s:f:p:{pump%7B7%7D}": "hash",
        "{pump%7B7%7D}_messages": "zset",
        "{pump%7B7%7D}_messages_1": "string",
        "{pump%7B7%7D}_messages_2": "string",
        "{pump%7B7%7D}_last_packet_id": "string",
        "t:r:{status}": "list",
    } | {name: "zset" for name in keys(redis_server) if name.endswith("_positions")}
    session = json.loads(redis_server.ask("GET", "s:ol:{pump%7B7%7D}"))
    assert (session["client_id"], session["status"]) == ("pump{7}", "offline")
    message = json.loads(redis_server.ask("GET", "{pump%7B7%7D}_messages_2"))
    assert (message["packetType"], message["packetId"], message["topicName"]) == ("PUBLISH", 2, "fleet/b")
    assert message["retained"] is False
    assert 0 < redis_server.ask("PTTL", "{pump%7B7%7D}_messages_2") <= 7 * DAY_S * 1000
    assert redis_server.ask("ZRANGE", "{pump%7B7%7D}_messages", 0, -1, "WITHSCORES")[1::2] == [b"1", b"2"]

    def shown(*words: str) -> tuple[str, bytes]:
        found = json.loads(redis_server.ask(*words))
        found = found.get("message", found)
        return found["topicName"], base64.b64decode(found["payload"])

    assert shown("HGET", "s:f:p:{pump%7B7%7D}", "1") == ("fleet/a", b"sent")
    assert shown("HGET", "s:f:ri:{r}", "77") == ("elsewhere", b"not released")
    assert shown("GET", "s:w:{pump%7B7%7D}") == ("wills", b"gone")


@pytest.mark.promise("device-9", "repositories-1")
def test_everything_is_there_after_a_kill(broker: BrokerProcess) -> None:
    broker.start()

    async def before() -> None:
        holder = await kept(broker, "s", acknowledges=False)
        await holder.subscribe(Subscription("t", 2))
        publisher = await client(broker, "p")
        await publisher.publish("t", b"1", qos=2)
        await arrived(holder, 1)
        await gone(holder)
        for number in range(2, 30):
            await publisher.publish("t", b"%d" % number, qos=1 + number % 2)
        await publisher.publish("kept", b"retained", qos=1, retain=True)

    async def after() -> None:
        back = await kept(broker, "s")
        assert present(back)
        assert await arrived(back, 29) == [b"%d" % number for number in range(1, 30)]
        assert back.messages[0].dup
        await back.subscribe(Subscription("kept", 1))
        assert (await arrived(back, 30))[-1] == b"retained"
        publisher = await client(broker, "p")
        await publisher.publish("t", b"more", qos=2)
        assert (await arrived(back, 31))[-1] == b"more"

    talk(before)
    broker.kill()
    broker.start()
    talk(after)


def test_while_redis_is_away_the_log_goes_on(broker: BrokerProcess, redis_server: RedisServer) -> None:
    broker.start()

    async def dialogue() -> None:
        live = await kept(broker, "live")
        await live.subscribe(Subscription("t", 1))
        await live.subscribe(Subscription("two", 2))
        absent = await kept(broker, "absent")
        await absent.subscribe(Subscription("t", 1))
        await gone(absent)
        publisher = await client(broker, "p")
        await publisher.publish("t", b"0", qos=1)
        await arrived(live, 1)
        redis_server.kill()
        for number in range(1, 200):
            assert await publisher.publish("t", b"%d" % number, qos=1) < 0x80
        assert await arrived(live, 200) == [b"%d" % number for number in range(200)]
        assert await publisher.publish("two", b"exactly once", qos=2) < 0x80
        await asyncio.to_thread(
            wait_until, lambda: metric(broker, "session_store_failing") == 1, 30, "seen as away"
        )
        status, parts = await asyncio.to_thread(ready, broker)
        assert status == 503 and parts["session_store"] != "ok"
        assert len(live.messages) == 200  # what is QoS 2 waits for its state
        began = time.monotonic()
        waiting = make("absent")
        connack = await waiting.connect(
            broker.port, clean_start=False, properties=Properties(session_expiry_interval=DAY_S)
        )
        assert connack.reason_code == SERVER_UNAVAILABLE
        assert 0.5 < time.monotonic() - began < 30
        old = make("older", version=ProtocolVersion.V311)
        assert (await old.connect(broker.port, clean_start=False)).reason_code == 3
        await client(broker, "passing")  # keeps nothing, so it need not wait
        await asyncio.to_thread(redis_server.start)
        await wait_for(lambda: len(live.messages) == 201, 30, "what waited arrives")
        back = await kept(broker, "absent")
        assert present(back)
        assert await arrived(back, 200) == [b"%d" % number for number in range(200)]
        status, parts = await asyncio.to_thread(ready, broker)
        assert (status, parts["session_store"]) == (200, "ok")

    talk(dialogue)


def test_what_waited_for_redis_when_the_broker_died_is_repaired_from_the_log(
    broker: BrokerProcess, redis_server: RedisServer
) -> None:
    broker.start()

    async def before() -> None:
        absent = await kept(broker, "absent")
        await absent.subscribe(Subscription("t", 2))
        await gone(absent)
        sender = await kept(broker, "sender", acknowledges=False)
        await sender.subscribe(Subscription("x", 1))
        redis_server.kill()
        for number in range(50):
            assert await sender.publish("t", b"%d" % number, qos=1) < 0x80
        await sender.publish("kept", b"retained", qos=1, retain=True)

    async def after() -> None:
        back = await kept(broker, "absent")
        assert await arrived(back, 50) == [b"%d" % number for number in range(50)]
        await back.subscribe(Subscription("kept", 1))
        assert (await arrived(back, 51))[-1] == b"retained"
        await back.ping()
        assert len(back.messages) == 51

    talk(before)
    broker.kill()
    redis_server.start()
    broker.start()
    talk(after)


def test_the_broker_ends_though_redis_does_not_answer(
    broker: BrokerProcess, redis_server: RedisServer
) -> None:
    broker.start()

    async def before() -> None:
        absent = await kept(broker, "absent")
        await absent.subscribe(Subscription("t", 1))
        await gone(absent)
        redis_server.kill()
        publisher = await client(broker, "p")
        assert await publisher.publish("t", b"1", qos=1) < 0x80

    async def after() -> None:
        assert await arrived(await kept(broker, "absent"), 1) == [b"1"]

    talk(before)
    assert broker.stop(deadline_s=20) == 0
    redis_server.start()
    broker.start()
    talk(after)


BROKEN = (
    (("SET", "s:ol:{broken}", "{"), "s:ol:{broken}"),
    (("SET", "s:ol:{broken}", '{"epoch":1,"generation":1,"client_id":"other"}'), "s:ol:{broken}"),
    (("RPUSH", "s:ol:{broken}", "x"), "'s:ol:{broken}': is a list, not a string"),
    (("SET", "s:s:{s}", "x"), "'s:s:{s}': is a string, not a hash"),
    (("HSET", "s:s:{s}", "t", "x"), "'s:s:{s}, field t'"),
    (("HSET", "s:f:ri:{s}", "70000", "1"), "'s:f:ri:{s}'"),
    (("SET", "{s}_messages", "x"), "'{s}_messages': is a string, not a zset"),
    (("SET", "s:w:{s}", "x"), "s:w:{s}"),
    (("RPUSH", "t:r:{t}", "x"), "t:r:{t}"),
    (("SET", "t:r:{t}", "x"), "t:r:{t}"),
    (("SET", "embermq:schema", "x"), "embermq:schema"),
    (("SET", "embermq:schema", '{"version":3,"log":"1"}'), "has version 3"),
    (("DEL", "embermq:schema"), "but no embermq:schema"),
)
"""What somebody does to keys, and what the start says of it."""


def test_what_is_broken_is_named_and_the_start_refused(
    broker: BrokerProcess, redis_server: RedisServer
) -> None:
    broker.start()

    async def before() -> None:
        await kept(broker, "s")

    talk(before)
    broker.stop()
    whole = RedisCopy([redis_server])
    for words, told in BROKEN:
        redis_server.ask(*words)
        before_start = broker.output_size()
        refused(broker)
        assert told in broker.output_from(before_start).decode(), words
        whole.put_back()


def test_a_redis_that_is_not_there_is_told_without_its_password(
    servers: dict[str, object], tmp_path: Path
) -> None:
    settings = servers | {"stores.session": "redis://somebody:hunter2@127.0.0.1:1/3"}
    broker = BrokerProcess(tmp_path / "data", settings=settings)
    text = refused(broker)
    assert "redis://127.0.0.1:1/3" in text
    assert "hunter2" not in text
    broker.close()


def test_check_config_shows_the_store_without_its_password() -> None:
    kafka = ["--set", "stores.log=kafka://127.0.0.1:1", "--set", "kafka.request_timeout_s=1"]
    command = ["check-config", *kafka, "--set", "stores.session=redis://u:hunter2@127.0.0.1:6379"]
    for words in (command, [*command, "--json"]):
        made = run_program(*words)
        assert made.returncode == 0, made.stderr
        assert "hunter2" not in made.stdout + made.stderr
        assert "redis://u:***@127.0.0.1:6379" in made.stdout
    made = run_program("check-config", "--set", "stores.session=rediss+sentinel://u:hunter2@h")
    assert made.returncode != 0
    assert "stores.session" in made.stdout + made.stderr
    assert "hunter2" not in made.stdout + made.stderr


def test_a_password_from_a_file_and_a_start_up_block_without_it(
    kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    with RedisServer(tmp_path_factory.mktemp("closed"), password="hunter2") as server:
        url = f"redis://127.0.0.1:{server.port}"
        settings = on_servers(kafka, server) | {"stores.session": f"{url}?password_file={secret}"}
        with BrokerProcess(tmp_path / "data", settings=settings) as broker:
            assert f"sessions   {url}" in broker.output()
            assert "hunter2" not in broker.output()


def test_a_cluster_has_all_of_it(kafka: KafkaServer, redis_cluster: RedisCluster, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings=on_servers(kafka, redis_cluster)) as broker:

        async def before() -> None:
            for number in range(20):
                found = await kept(broker, f"s{number}")
                await found.subscribe(Subscription("t", 1))
                await gone(found)
            publisher = await client(broker, "p")
            await publisher.publish("t", b"1", qos=1)

        async def after() -> None:
            for number in range(20):
                assert await arrived(await kept(broker, f"s{number}"), 1) == [b"1"]

        talk(before)
        broker.kill()
        broker.start()
        talk(after)
        quiet(broker)


def test_a_backup_says_what_it_does_not_have(broker: BrokerProcess, tmp_path: Path) -> None:
    broker.start()
    given = [
        word
        for name in ("stores.log", "stores.session")
        for word in ("--set", f"{name}={broker.settings[name]}")
    ]
    made = run_program("backup", tmp_path / "copy", "--data-dir", broker.data_dir, *given)
    assert made.returncode == 0, made.stderr
    assert "sessions" in made.stdout and "are not in it" in made.stdout


@pytest.mark.in_faults
def test_a_log_that_lost_its_end_uses_no_position_twice(
    broker: BrokerProcess, kafka: KafkaServer, redis_server: RedisServer
) -> None:
    """Redis has what Kafka has lost with the power of a server: what is published then is not taken for that."""
    broker.settings["device.linger_ms"] = 10_000  # so that positions are not forgotten

    async def before() -> None:
        for client_id in ("absent", "holder"):
            found = await kept(broker, client_id)
            await found.subscribe(Subscription("t", 1))
            await gone(found)
        await kept(broker, "holder", acknowledges=False)
        publisher = await client(broker, "p")
        for number in range(20):
            assert await publisher.publish("t", b"%d" % number, qos=1) < 0x80
        await asyncio.to_thread(
            wait_until, lambda: redis_server.ask("ZCARD", "{absent}_messages") == 20, 30, "all is stored"
        )
        kafka.kill()
        broker.kill()

    async def after() -> None:
        publisher = await client(broker, "p")
        for number in range(20, 40):
            assert await publisher.publish("t", b"%d" % number, qos=1) < 0x80
        back = await kept(broker, "absent")
        assert await arrived(back, 40) == [b"%d" % number for number in range(40)]

    broker.start()
    talk(before)
    cut(kafka, f"{broker.settings['kafka.prefix']}.msg.all", 5)
    kafka.start()
    broker.start()
    assert "New ones go to partition 1" in broker.output()
    talk(after)


def test_a_redis_that_knows_nothing_of_the_log_is_refused(
    broker: BrokerProcess, redis_server: RedisServer
) -> None:
    """Another database by mistake, or one that has lost everything: its sessions would miss what is in the log."""

    async def begin() -> None:
        away = await kept(broker, "pump")
        await away.subscribe(Subscription("t", 1))
        await gone(away)
        publisher = await client(broker, "p")
        await publisher.publish("t", b"1", qos=1)

    async def come_back() -> None:
        back = await kept(broker, "pump")
        assert present(back) and await arrived(back, 1) == [b"1"]

    broker.start()
    talk(begin)
    assert broker.stop() == 0
    ours = broker.settings["stores.session"]
    for _ in range(2):  # a refusal makes nothing
        broker.settings["stores.session"] = f"{redis_server.url}/7"
        assert "or set kafka.adopt_log when what knew" in refused(broker)
    broker.settings["stores.session"] = ours
    broker.start()
    talk(come_back)
    assert broker.stop() == 0
    redis_server.ask("FLUSHALL")
    broker.launch()
    assert broker.wait() == 1
    broker.settings["kafka.adopt_log"] = "true"
    broker.start()


def test_what_an_adopted_log_holds_is_owed_at_no_later_start_either(
    broker: BrokerProcess, redis_server: RedisServer
) -> None:
    async def begin() -> None:
        publisher = await client(broker, "p")
        for topic in ("t", "$queue/work"):
            assert await publisher.publish(topic, b"old", qos=1, retain=topic == "t") < 0x80

    async def read() -> None:
        reader = await client(broker, "r")
        await reader.subscribe(Subscription("t", 1), Subscription("$queue/work", 1))
        for topic in ("t", "$queue/work"):
            assert await reader.publish(topic, b"new", qos=1) < 0x80
        assert await arrived(reader, 2) == [b"new", b"new"]

    broker.start()
    talk(begin)
    assert broker.stop() == 0
    redis_server.ask("FLUSHALL")
    broker.settings["kafka.adopt_log"] = "true"
    broker.start()
    broker.kill()
    broker.settings["kafka.adopt_log"] = "false"
    broker.start()
    talk(read)
