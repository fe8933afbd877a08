"""The broker runs its pipeline on a log in Kafka: what it does, says and keeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest
from tests.kafka_pipeline.kafka_pipeline_broker import RUNS_S, KafkaPipelineBroker
from tests.support.metrics import metric
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for, wait_until

from embermq.adapters.sqlite.message_store import SqliteMessageStore
from embermq.mqtt.wire.packets import Publish, Subscription

SEEN_S = 60.0
HEALED_S = 25.0
"""15 s are promised; the rest is for a machine whose cores others want, too."""


async def published(broker: KafkaPipelineBroker, root: str, numbers: Iterable[int]) -> None:
    """A message of QoS 2 for each number, acknowledged, to three topics in turn."""
    publisher = MqttClient(f"publisher-of-{root}")
    await publisher.connect(broker.port)
    for number in numbers:
        assert await publisher.publish(f"{root}/{number % 3}", b"%d" % number, qos=2) < 0x80
    publisher.close()


def position(found: dict[str, Any]) -> int:
    """Of a query's status."""
    return int(found.get("position", 0))


def ends(broker: KafkaPipelineBroker) -> int:
    """Of the message log, all partitions together."""
    return sum(end for _, end in broker.bounds(f"{broker.prefix}.msg.all").values())


@pytest.mark.promise("pipeline-1", "pipeline-6", "pipeline-11", "pipeline-13")
def test_the_queries_run_and_what_they_have_done_is_shown(kafka_pipeline_broker: KafkaPipelineBroker) -> None:
    """Dispatch and archive on Kafka, from a publish to the application log, the archive and the status."""
    broker = kafka_pipeline_broker
    root = f"status-{ends(broker)}"
    run(published(broker, root, range(20)))
    end = ends(broker)
    wait_until(
        lambda: [position(broker.query(query)) for query in ("dispatch", "archive")] == [end, end],
        RUNS_S,  # the archive has a JVM of its own, which may only begin to start here
        "both have done everything",
        poll_s=0.1,
    )
    wait_until(lambda: not broker.status()["waiting"], SEEN_S, "nothing waits")
    assert broker.query("dispatch")["mode"] == "realtime"
    wait_until(lambda: metric(broker, "pipeline_lag_messages") == 0, SEEN_S, "the metrics say the same")
    told = json.loads(broker.command_line("pipeline", "status", "--json"))
    assert {query["name"]: query["position"] for query in told["queries"]} == {
        "dispatch": end,
        "archive": end,
    }
    shown = broker.command_line("messages", "show", "--topic", f"{root}/1", "--json")
    rows = [json.loads(line) for line in shown.splitlines()]
    assert [row["payload"] for row in rows] == [str(number) for number in range(1, 20, 3)]
    with closing(SqliteMessageStore(broker.data_dir / "messages.db", is_kafka=True)) as store:
        found = store.range(f"{root}/1", rows[1]["offset"], 100)
        assert [stored.message.payload for stored in found] == [b"%d" % number for number in range(7, 20, 3)]


@pytest.mark.promise("application-2", "pipeline-14")
def test_an_application_log_that_is_deleted_under_the_job_is_there_again_and_gets_what_comes(
    kafka_pipeline_broker: KafkaPipelineBroker,
) -> None:
    """Of a client that is there, and of one that is away."""
    broker = kafka_pipeline_broker

    async def scenario() -> None:
        here = await subscribed(broker, "appHere", "lost/#")
        away = await subscribed(broker, "appAway", "lost/#")
        await published(broker, "lost", range(5))
        await wait_for(lambda: len(here.messages) == len(away.messages) == 5, SEEN_S, "the logs work")
        # What is published as done is not repeated, and the logs are all that would tell repeats.
        end = ends(broker)
        await wait_for(lambda: position(broker.query("dispatch")) == end, SEEN_S, "dispatch has done it")
        away.close()
        logs = [broker.log_of("appHere"), broker.log_of("appAway")]
        await asyncio.to_thread(broker.kafka.delete_topic, *logs)
        await published(broker, "lost", range(5, 10))
        await wait_for(lambda: broker.count(logs[1]) >= 5, HEALED_S, "the log that nobody reads is there")
        await wait_for(here.ended.done, SEEN_S, "the other one is told that its log is gone")
        for client_id in ("appHere", "appAway"):
            back = await subscribed(broker, client_id, "lost/#")
            # One that is there gets from the message log's tail what comes until it is told.
            at_once = [] if client_id == "appAway" else here.messages[5:]
            await arrived(back, 5 - len(at_once), SEEN_S)
            await back.ping()
            # What was settled just before the log went may come again: nothing else remembers that it has been there.
            judge([*at_once, *(one for one in back.messages if int(one.payload) >= 5)], range(5, 10))
        judge(here.messages[:5], range(5))

    run(scenario())


async def subscribed(broker: KafkaPipelineBroker, client_id: str, topic_filter: str) -> MqttClient:
    """An APPLICATION client with a session that stays."""
    client = MqttClient(client_id)
    connack = await client.connect(broker.port, clean_start=False, expiry_s=600)
    assert connack.reason_code == 0, connack
    await client.subscribe(Subscription(topic_filter, 2))
    return client


async def arrived(client: MqttClient, count: int, deadline_s: float) -> None:
    """Until so many messages are there."""
    await wait_for(lambda: len(client.messages) >= count, deadline_s, f"{count} for {client.client_id}")


def judge(messages: list[Publish], expected: Iterable[int]) -> None:
    """Each once, those of a topic in order."""
    numbers = [int(message.payload) for message in messages]
    assert sorted(numbers) == list(expected)
    for topic in {message.topic for message in messages}:
        of_topic = [int(message.payload) for message in messages if message.topic == topic]
        assert of_topic == sorted(of_topic), topic
