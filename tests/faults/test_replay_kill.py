"""kill -9 of a replay and of its broker at random moments, while others publish: each message comes once, in order."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.pipeline.replaying import chosen_without_spark, messages_in
from tests.support.broker_process import EMBERMQ, BrokerProcess
from tests.support.mqtt_client import ConnectionEnded, MqttClient, run

from embermq.cli import message_bar
from embermq.cli.main import main
from embermq.pipeline.jobs import replay as job
from embermq.pipeline.places import Places

MESSAGES = 3_000
KILLS = 6


def spawn(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([str(EMBERMQ), *words], stdout=subprocess.DEVNULL)


@pytest.mark.promise("pipeline-2", "pipeline-3", "pipeline-12")
@pytest.mark.long_rounds
@pytest.mark.timeout(600)
def test_each_message_is_replayed_once(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)

    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with BrokerProcess(tmp_path / "data") as broker:

        async def publish(count: int | None) -> None:
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

        run(publish(MESSAGES), 300)
        words = ["pipeline", "replay", "--data-dir", str(broker.data_dir), "--json", "--from", "0"]
        words += ["--topic", "again/{topic}", "--rate", "1500"]
        with monkeypatch.context() as patch:
            patch.setattr(job, "choose", chosen_without_spark)
            patch.setattr(message_bar, "print_progress", interrupt)
            assert main(words) == 130

        async def scenario() -> None:
            living = asyncio.create_task(publish(None))
            kills = [random.choice(("job", "broker", "both")) for _ in range(KILLS)]
            asked = None
            for what in kills:
                if asked is None or asked.poll() is not None:
                    asked = await asyncio.to_thread(spawn, words)
                await asyncio.sleep(random.uniform(0.3, 1.2))
                if what != "broker":
                    asked.kill()
                    await asyncio.to_thread(asked.wait, 60)
                if what != "job":
                    broker.kill()
                    await asyncio.to_thread(broker.start)
            if asked is not None:
                assert await asyncio.to_thread(asked.wait, 240) in (0, -9)
            living.cancel()

        run(scenario(), 500)
        assert main(words) == 0
        found = [
            dict(message.properties.user_properties)["replayed-from"]
            for _, message in messages_in(Places(broker.data_dir))
            if message.topic.startswith("again/load/")
        ]
        assert found == [f"0:{offset}" for offset in range(MESSAGES)]
