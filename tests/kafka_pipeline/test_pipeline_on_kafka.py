"""The broker runs its pipeline on a log in Kafka: what it does, says and keeps."""

from __future__ import annotations

import json
import re
from contextlib import closing
from typing import Any

import pytest
from tests.kafka_pipeline.kafka_pipeline_broker import KafkaPipelineBroker
from tests.support.metrics import metric
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_until

from embermq.adapters.sqlite.message_store import SqliteMessageStore

SEEN_S = 30.0
BACK_S = 60.0


async def published(broker: KafkaPipelineBroker, topic: str, count: int) -> None:
    """So many messages of QoS 1, each acknowledged."""
    publisher = MqttClient(f"publisher-of-{topic.replace('/', '-')}")
    await publisher.connect(broker.port)
    for number in range(count):
        await publisher.publish(topic, b"%d" % number, qos=1)
    publisher.close()


def position(found: dict[str, Any]) -> int:
    """Of a query's status."""
    return int(found.get("position", 0))


def ends(broker: KafkaPipelineBroker) -> int:
    return sum(end for _, end in broker.bounds(f"{broker.prefix}.msg.all").values())


@pytest.mark.timeout(200)
@pytest.mark.promise("pipeline-1", "pipeline-6", "pipeline-11", "pipeline-13")
def test_the_queries_run_and_what_they_have_done_is_shown(kafka_pipeline_broker: KafkaPipelineBroker) -> None:
    broker = kafka_pipeline_broker
    run(published(broker, "status/one", 20))
    end = ends(broker)
    wait_until(
        lambda: [position(broker.query(query)) for query in ("dispatch", "archive")] == [end, end],
        SEEN_S,
        "both have done everything",
        poll_s=0.1,
    )
    wait_until(lambda: not broker.status()["waiting"], SEEN_S, "nothing waits")
    assert broker.query("dispatch")["mode"] == "realtime"
    assert metric(broker, "pipeline_lag_messages") == 0
    told = json.loads(broker.command_line("pipeline", "status", "--json"))
    assert {query["name"]: query["position"] for query in told["queries"]} == {
        "dispatch": end,
        "archive": end,
    }
    shown = broker.command_line("messages", "show", "--topic", "status/one", "--json")
    rows = [json.loads(line) for line in shown.splitlines()]
    assert [row["payload"] for row in rows] == [str(number) for number in range(20)]
    with closing(SqliteMessageStore(broker.data_dir / "messages.db", is_kafka=True)) as store:
        found = store.range("status/one", rows[1]["offset"], 100)
        assert [stored.message.payload for stored in found] == [b"%d" % number for number in range(2, 20)]


@pytest.mark.timeout(200)
@pytest.mark.promise("pipeline-5", "pipeline-14")
def test_while_the_pipeline_is_away_the_log_is_kept_for_it_and_then_trimmed(
    kafka_pipeline_broker: KafkaPipelineBroker,
) -> None:
    broker = kafka_pipeline_broker
    log = f"{broker.prefix}.msg.all"
    broker.kill_driver()
    run(published(broker, "kept/one", 30))
    kept = ends(broker) - 30
    wait_until(lambda: broker.status()["state"] == "down", SEEN_S, "status says so", poll_s=0.05)
    wait_until(lambda: broker.status()["waiting"] >= 30, SEEN_S, "what waits is counted", poll_s=0.05)
    found = broker.status()
    assert any(
        re.fullmatch(r"the pipeline is down: application logs wait for \d+ records", text)
        for text in found["warnings"]
    )
    while broker.query("dispatch").get("state") != "running":
        found = broker.status()
        done = {query["name"]: query["positions"] for query in found["queries"]}
        for partition, (first, end) in broker.bounds(log).items():
            least = min(int(positions.get(str(partition), 0)) for positions in done.values())
            assert first <= max(least, 0), f"partition {partition} of {end} is trimmed before it is read"
    wait_until(lambda: not broker.status()["waiting"], BACK_S, "all is read", poll_s=0.1)

    def is_trimmed() -> bool:
        return sum(first for first, _ in broker.bounds(log).values()) > kept

    wait_until(is_trimmed, SEEN_S, "what everybody has read is gone", poll_s=0.2)
    pins = {pin["name"] for pin in broker.status()["log"]["pins"]}
    assert pins == {"dispatcher", "dispatch", "archive"}
