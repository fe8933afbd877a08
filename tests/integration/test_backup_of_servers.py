"""Data directory, Redis, PostgreSQL and Kafka, each copied by its own means one after the other, and put back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.sql_server import SqlServer
from tests.support.stored_data import NEVER_S, SETTINGS, check, fill, storing_broker
from tests.support.stored_servers import CLIENTS, dumped, loaded, settings_of, words_of
from tests.support.waiting import wait_for

from embermq.adapters.redis.floor_marks import mark_keys
from embermq.mqtt.wire.packets import Subscription

LOST = 3
LATER = [b"%d" % number for number in range(20)]
AFTER = [b"after %d" % number for number in range(20)]


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    """The test's own: it is stopped, copied and replaced."""
    with KafkaServer(tmp_path / "kafka") as server:
        yield server


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", appendonly=False) as server:
        yield server


def checked(data_dir: Path, words: list[str], code: int = 0) -> dict[str, str]:
    """Store -> state, the worst of several."""
    done = run_program("check-stores", "--json", "--data-dir", data_dir, *words)
    assert done.returncode == code, done.stderr + done.stdout
    found: dict[str, str] = {}
    for one in json.loads(done.stdout):
        found[one["store"]] = max(
            found.get(one["store"], ""), one["state"], key=["", "fits", "repaired", "lost"].index
        )
    return found


def subscribes(broker: BrokerProcess) -> None:
    """A client that will be there between two copies."""

    async def scenario() -> None:
        present = MqttClient("present")
        await present.connect(broker.port, expiry_s=NEVER_S)
        await present.subscribe(Subscription("later", 2))
        present.abort()
        await present.ended

    run(scenario())


def goes_on(broker: BrokerProcess, payloads: list[bytes]) -> None:
    """It comes back and gets messages at once. What it had since a copy may come again before them."""

    async def scenario() -> None:
        present = MqttClient("present")
        await present.connect(broker.port, clean_start=False, expiry_s=NEVER_S)
        publisher = MqttClient("later-publisher")
        await publisher.connect(broker.port)
        for payload in payloads:
            assert await publisher.publish("later", payload, qos=2) == 0
        await wait_for(
            lambda: payloads == [message.payload for message in present.messages][-len(payloads) :],
            60,
            "they come",
        )
        present.close()
        publisher.close()

    run(scenario())


@pytest.mark.promise("repositories-4")
def test_copies_in_the_documented_order_are_put_back_and_nothing_is_lost(
    kafka: KafkaServer, redis: RedisServer, postgres: SqlServer, tmp_path: Path
) -> None:
    """The documented backup of Kafka, Redis and PostgreSQL, copied while the broker serves, is put back whole."""
    database = postgres.database()
    settings = settings_of(kafka, redis, database)
    words = words_of(settings)
    copies = tmp_path / "copies"
    copies.mkdir()
    with storing_broker(tmp_path / "data", tmp_path, settings) as broker:
        fill(broker, *words, clients=CLIENTS)
        subscribes(broker)
        redis.ask("SAVE")
        shutil.copy(redis.folder / "dump.rdb", copies)
        goes_on(broker, LATER)
        dumped(database, copies / "static.sql")
        saved = run_program("backup", copies / "data", "--data-dir", broker.data_dir, *words)
        assert saved.returncode == 0, saved.stderr
        broker.kill()
    kafka.stop()
    shutil.copytree(kafka.folder / "data", copies / "kafka")

    shutil.rmtree(kafka.folder / "data")
    shutil.copytree(copies / "kafka", kafka.folder / "data")
    kafka.start()
    redis.kill()
    shutil.copy(copies / "dump.rdb", redis.folder)
    redis.start()
    settings = settings_of(kafka, redis, loaded(postgres, copies / "static.sql"))
    words = words_of(settings)
    restored = tmp_path / "restored"
    done = run_program("restore", copies / "data", "--data-dir", restored)
    assert done.returncode == 0, done.stderr
    found = checked(restored, words)
    assert found == {"message log": "fits", "session data": "repaired", "accounts": "fits"}
    with storing_broker(restored, tmp_path, settings) as broker:
        check(broker, *words, clients=CLIENTS)
        goes_on(broker, AFTER)
        broker.stop()
    kafka.stop()
    shutil.rmtree(kafka.folder / "data")
    shutil.copytree(copies / "kafka", kafka.folder / "data")
    kafka.start()
    found = checked(restored, words, LOST)
    assert found["message log"] == found["session data"] == "lost", "they know of what came after the copy"
    redis.flush()
    refused = run_program("check-stores", "--data-dir", restored, *words)
    assert refused.returncode == 1 and "the Redis of stores.session knows no log" in refused.stderr


@pytest.mark.promise("repositories-4")
@pytest.mark.parametrize("kind", ["redis_server", pytest.param("redis_cluster", marks=pytest.mark.in_faults)])
def test_what_is_ahead_of_the_log_is_told(
    kind: str, running_kafka: KafkaServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """As if Kafka had been copied before Redis; of a cluster a single master."""
    running_kafka.heal()
    redis: RedisServer | RedisCluster = request.getfixturevalue(kind)
    settings = SETTINGS | on_servers(running_kafka, redis)
    words = words_of(settings)
    with storing_broker(tmp_path / "data", tmp_path, settings) as broker:
        subscribes(broker)
        goes_on(broker, LATER)
        running = run_program("check-stores", "--data-dir", broker.data_dir, *words)
        assert running.returncode == 1 and "in use by another broker" in running.stderr
        broker.stop()
    assert checked(tmp_path / "data", words)["session data"] in ("fits", "repaired")
    without = run_program("check-stores", "--data-dir", tmp_path / "data")
    assert without.returncode == 1 and "name both" in without.stderr
    mark = mark_keys("", cluster=isinstance(redis, RedisCluster))[0]
    master = redis.master_of(mark) if isinstance(redis, RedisCluster) else redis
    master.ask("SET", mark, 1_000)
    told = run_program("check-stores", "--data-dir", tmp_path / "data", *words)
    assert told.returncode == LOST, "although all others fit"
    assert "records ahead of the log, which lacks them" in told.stdout
