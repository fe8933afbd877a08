"""A backup of a broker whose pipeline is working: the restored one owes an APPLICATION client the same messages.
Without Spark, and in `make faults` with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.mqtt_client import MqttClient, run
from tests.support.played_pipeline import PlayedPipeline
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Subscription

SETTINGS = {"clients.application_ids": "application-*", "pipeline.queries": "dispatch,archive,lake"}
MESSAGES = 1_000
SPARK_S = 90.0
KEPT_S = 3_600


def typed(*words: str | Path) -> None:
    run_program(*words, timeout_s=SPARK_S).check_returncode()


async def published(broker: BrokerProcess, numbers: range) -> None:
    publisher = MqttClient("publisher")
    await publisher.connect(broker.port)
    await asyncio.gather(*(publisher.publish("flood/one", b"%d" % one, qos=1) for one in numbers))
    publisher.close()
    await publisher.ended


async def received(broker: BrokerProcess, wanted: list[int], *, new: bool) -> None:
    """The client comes, has what it is owed, and leaves without a word."""
    client = MqttClient("application-1")
    connack = await client.connect(broker.port, clean_start=new, expiry_s=KEPT_S)
    assert connack.session_present is not new
    await client.subscribe(Subscription("flood/#", 1))
    await wait_for(lambda: len(client.messages) >= len(wanted), SPARK_S, f"{len(wanted)} messages")
    await client.ping()
    client.abort()
    await client.ended
    assert [int(message.payload) for message in client.messages] == wanted


@contextmanager
def running(data_dir: Path, is_played: bool) -> Iterator[BrokerProcess]:
    """A broker and its pipeline."""
    with BrokerProcess(data_dir, pipeline=not is_played, settings=SETTINGS) as broker:
        if not is_played:
            yield broker
            return
        with PlayedPipeline(data_dir):
            yield broker


@pytest.mark.parametrize(
    "is_played", [True, pytest.param(False, marks=pytest.mark.in_faults)], ids=["played", "spark"]
)
def test_what_an_application_is_owed_is_in_a_backup(tmp_path: Path, is_played: bool) -> None:
    saved, restored = tmp_path / "saved", tmp_path / "restored"

    async def before() -> None:
        await received(broker, [], new=True)
        await published(broker, range(MESSAGES))
        await received(broker, list(range(MESSAGES)), new=False)  # the pipeline has done its work up to here
        await published(broker, range(MESSAGES, 2 * MESSAGES))
        await asyncio.to_thread(typed, "backup", saved, "--data-dir", broker.data_dir)

    async def after() -> None:
        await published(broker, range(2 * MESSAGES, 3 * MESSAGES))
        await received(broker, list(range(MESSAGES, 3 * MESSAGES)), new=False)

    with running(tmp_path / "data", is_played) as broker:
        run(before(), SPARK_S + 30)
    typed("restore", saved, "--data-dir", restored)
    with running(restored, is_played) as broker:
        run(after(), SPARK_S + 30)
