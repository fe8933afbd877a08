"""kill -9 of a replay and of its broker at random moments, and of the servers that it keeps its data on, while others
publish: each message comes once, in order."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.replaying import choose_messages, chosen_without_spark, messages_in
from tests.support.broker_process import EMBERMQ, BrokerProcess
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import ConnectionEnded, MqttClient, run
from tests.support.redis_server import RedisServer
from tests.support.seeds import ROUNDS

from embermq.cli import message_bar
from embermq.cli.main import main
from embermq.formats.kafka_record import decode_kafka_record
from embermq.model.message import Message
from embermq.pipeline.jobs import replay as job
from embermq.pipeline.jobs.replay_values import Chosen, ReplayRange
from embermq.pipeline.places import Places

MESSAGES, KILLS = (3_000, 6) if ROUNDS > 1 else (1_000, 2)
Kill = Callable[[], None]


def spawn(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([str(EMBERMQ), *words], stdout=subprocess.DEVNULL)


async def publish(broker: BrokerProcess, count: int | None) -> None:
    """So many, or until it is cancelled, over any number of brokers."""
    number = 0
    while count is None or number < count:
        publisher = MqttClient("publisher")
        with suppress(OSError, ConnectionEnded, TimeoutError):
            await publisher.connect(broker.port)
            while count is None or number < count:
                topic = f"live/{number % 5}" if count is None else f"load/{number % 5}"
                await publisher.publish(topic, b"%d" % number, qos=1)
                number += 1
        publisher.abort()
        await asyncio.sleep(0.02)


async def killed(broker: BrokerProcess, words: list[str], random: Random, others: Mapping[str, Kill]) -> None:
    """The replay is killed and given again, or what it counts on dies under it."""
    living = asyncio.create_task(publish(broker, None))
    asked = None
    for what in [random.choice(("job", "broker", "both", *others)) for _ in range(KILLS)]:
        if asked is None or asked.poll() is not None:
            asked = await asyncio.to_thread(spawn, words)
        await asyncio.sleep(random.uniform(0.3, 1.2))
        if what in ("job", "both"):
            asked.kill()
            await asyncio.to_thread(asked.wait, 60)
        if what in ("broker", "both"):
            broker.kill()
            await asyncio.to_thread(broker.start)
        if what in others:
            await asyncio.to_thread(others[what])
    if asked is not None:
        assert await asyncio.to_thread(asked.wait, 240) in (0, -9)
    living.cancel()


def replay(
    broker: BrokerProcess, random: Random, choose: Any, given: list[str], others: Mapping[str, Kill]
) -> None:
    """Of all messages that there are when it begins; over when it returns."""

    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    run(publish(broker, MESSAGES), 300)
    words = ["pipeline", "replay", "--data-dir", str(broker.data_dir), "--json", "--from", "0", *given]
    words += ["--topic", "again/{topic}", "--rate", "1500"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "choose", choose)
        patch.setattr(message_bar, "print_progress", interrupt)
        assert main(words) == 130
    run(killed(broker, words, random, others), 500)
    assert main(words) == 0


def check(messages: list[tuple[int, Message]]) -> None:
    """Of the log, by offset."""
    loaded = [offset for offset, message in messages if message.topic.startswith("load/")]
    found = [
        dict(message.properties.user_properties)["replayed-from"]
        for _, message in messages
        if message.properties is not None and message.topic.startswith("again/load/")
    ]
    assert found == [f"0:{offset}" for offset in loaded] and len(loaded) >= MESSAGES


@pytest.mark.promise("pipeline-2", "pipeline-3", "pipeline-12")
@pytest.mark.long_rounds
def test_each_message_is_replayed_once(seed: int, tmp_path: Path) -> None:
    """`pipeline replay` is killed, or its broker: each message of the range is replayed once, in order."""
    with BrokerProcess(tmp_path / "data") as broker:
        replay(broker, Random(seed), chosen_without_spark, [], {})
        check(messages_in(Places(broker.data_dir)))


@pytest.mark.in_faults
def test_each_message_is_replayed_once_on_servers(
    seed: int, servers: dict[str, object], kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    def messages() -> list[tuple[int, Message]]:
        log = LogInKafka(kafka.bootstrap, str(servers["kafka.prefix"]))
        return [
            (
                one.offset() or 0,
                decode_kafka_record(one.key(), one.value(), one.headers()).record.message,  # type: ignore[arg-type]
            )
            for one in log.read(log.kafka.log_topic)
        ]

    def choose(
        _settings: object, _places: Places, wanted: Sequence[ReplayRange], *, into: Path, tasks: int
    ) -> Chosen:
        assert not tasks
        return choose_messages(messages(), wanted[0], into)

    def restart(server: KafkaServer | RedisServer) -> None:
        server.kill()
        server.start()

    given = [word for key, value in servers.items() for word in ("--set", f"{key}={value}")]
    others = {"kafka": partial(restart, kafka), "redis": partial(restart, redis_server)}
    with BrokerProcess(tmp_path / "data", settings=servers) as broker:
        replay(broker, Random(seed), choose, given, others)
        check(messages())
