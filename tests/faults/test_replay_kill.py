"""kill -9 of a replay and of its broker at random moments, while others publish: each message comes once, in order."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.broker_process import EMBERMQ, BrokerProcess
from tests.support.mqtt_client import ConnectionEnded, MqttClient, run

from embermq.cli import replay as command
from embermq.cli.main import main
from embermq.formats.log_record import decode_record, split_batch
from embermq.pipeline.jobs import replay as job
from embermq.pipeline.jobs.replay_feed import LOG_PART
from embermq.pipeline.jobs.replay_values import Chosen, ReplayRange
from embermq.pipeline.places import Places
from embermq.pipeline.sources.log_file import LogFile

MESSAGES = 3_000
KILLS = 6
NOTHING = {
    "expires_ms": None,
    "payload_format_indicator": None,
    "message_expiry_interval": None,
    "content_type": None,
    "response_topic": None,
    "correlation_data": None,
}


def chosen_without_spark(
    _settings: object, places: Places, wanted: ReplayRange, *, into: Path | None, tasks: int
) -> Chosen:
    """What Spark would choose; that is not what is killed here."""
    assert into is not None and not tasks
    rows: list[dict[str, Any]] = []
    for offset, message in messages_in(places):
        if offset < wanted.end:
            about = {
                "partition": 0,
                "offset": offset,
                "accepted_ms": message.accepted_ms,
                "user_properties": [],
            }
            fields = {name: getattr(message, name) for name in ("topic", "qos", "publisher", "payload")}
            rows.append(NOTHING | about | fields)
    (into / LOG_PART).mkdir()
    half = len(rows) // 2
    for number, part in enumerate((rows[:half], rows[half:])):
        pq.write_table(
            pa.Table.from_pylist(part), into / LOG_PART / f"part-{number}.parquet", row_group_size=700
        )
    return Chosen(records=len(rows), chosen=len(rows))


def messages_in(places: Places) -> list[tuple[int, Any]]:
    log = LogFile(places.log)
    try:
        return [
            (offset, decode_record(frame).message)
            for batch in log.batches(0, log.end() or 0)
            for offset, frame in enumerate(split_batch(batch.body, batch.count), batch.base)
        ]
    finally:
        log.close()


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
            patch.setattr(command, "_print_progress", interrupt)
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
