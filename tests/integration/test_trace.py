"""`embermq trace`: the life of one message, told from the files of a broker that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.mqtt_client import run
from tests.support.played_pipeline import PlayedPipeline
from tests.support.queue_worker import queue_broker, worker
from tests.support.traced_clients import three_messages
from tests.support.waiting import wait_until

IDS: list[str] = []
"""Of the message that is left in the queue."""
BEFORE = datetime.now(UTC) - timedelta(hours=1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Offsets 0, 1, 2 in t/a: application-1 has acknowledged the first, refused the second, and not got the third;
    application-2 has had all three and is gone for good; dev-1 is away. 3 and 4 are in a queue, 3 is acknowledged."""
    with ExitStack() as opened:
        folder = tmp_path_factory.mktemp("trace")
        queues = '[[queues]]\nname = "kept"\n'
        one = opened.enter_context(queue_broker(folder, queues, clients__application_ids="application-*"))
        opened.enter_context(PlayedPipeline(one.data_dir))
        run(_fill(one), 300)
        yield one


async def _fill(broker: BrokerProcess) -> None:
    publisher = await three_messages(broker.port, "application-1", "application-2")
    for _ in range(2):
        await publisher.publish("$queue/kept", b"q", qos=1)
    consumer = await worker(broker, "g-1", acknowledges=False)
    await consumer.consumes("$queue/kept")
    first, second = await consumer.take(2)
    await consumer.acks(first)
    IDS.append(second.id)
    consumer.abort()
    publisher.close()


def trace(broker: BrokerProcess, topic: str, *words: str, code: int = 0) -> dict[str, Any]:
    done = run_program("trace", topic, "--data-dir", broker.data_dir, "--json", *words)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout) if not code else {"error": done.stderr}
    return found


def outcomes(found: dict[str, Any], kind: str) -> dict[str, str]:
    return {one["to"]: one["outcome"] for one in found[kind]}


@pytest.mark.promise("pipeline-13")
def test_who_got_a_message_and_what_became_of_it(broker: BrokerProcess) -> None:
    def settled() -> bool:
        """broker.db is a little behind the log."""
        return outcomes(trace(broker, "t/a", "--position", "1"), "applications") == {
            "application-1": "refused",
            "application-2": "acknowledged",
        }

    wait_until(settled, 60, "it is written down")
    first = trace(broker, "t/a", "--position", "0:0")
    assert (first["publisher"], first["qos"], first["payload_bytes"], first["found_in"]) == (
        "pub",
        1,
        1,
        "the log",
    )
    assert outcomes(first, "applications") == dict.fromkeys(
        ("application-1", "application-2"), "acknowledged"
    )
    assert outcomes(first, "sessions") == {"dev-1": "waits, stored"}
    assert first["sinks"]["dispatch"] and not first["sinks"]["lake"]
    last = trace(broker, "t/a", "--position", "2")
    assert outcomes(last, "applications")["application-1"] == "waits in its log"
    assert (last["is_retained_now"], first["is_retained_now"]) == (True, False)
    by_time = trace(broker, "t/a", "--time", BEFORE.isoformat())
    assert by_time["position"] == "0:0"
    told = run_program("trace", "t/a", "--position", "1", "--data-dir", broker.data_dir).stdout
    assert "refused, 20" in told and "published    by pub, QoS 1" in told


def test_messages_of_queues(broker: BrokerProcess) -> None:
    def gone() -> bool:
        """broker.db is a little behind the log."""
        found = outcomes(trace(broker, "$queue/kept", "--position", "3"), "queues")
        return found == {"kept": "not in the queue any more: acknowledged, expired or removed"}

    wait_until(gone, 60, "its acknowledgement is written down")
    there = trace(broker, "$queue/kept", "--position", "4")
    assert outcomes(there, "queues")["kept"] in ("is in the queue", "waits", "waits to be tried again")
    assert trace(broker, "$queue/kept", "--message", IDS[-1])["position"] == "0:4"


def test_what_cannot_be_found_is_told_in_a_sentence(broker: BrokerProcess, tmp_path: Path) -> None:
    for words, code, said in (
        (("t/a",), 2, "one of --position, --time and --message"),
        (("t/a", "--position", "x"), 2, "--position: 'x' is no position"),
        (("t/b", "--position", "0"), 1, "0:0 is a message of topic 't/a', not of 't/b'"),
        (("t/a", "--position", "99"), 1, "the log ends before 0:99"),
        (("t/a", "--time", "12"), 2, "--time: '12' is no time"),
        (("t/b", "--time", "2026-01-01"), 1, "no message of topic 't/b' was accepted at"),
        (("t/a", "--message", "1-1"), 2, "is no durable queue"),
        (("$queue/kept", "--message", "9-9"), 1, "the queue 'kept' has no message '9-9'"),
    ):
        assert said in trace(broker, *words, code=code)["error"], words
    done = run_program("trace", "t", "--position", "1", "--data-dir", tmp_path)
    assert done.returncode == 1 and "is not the data directory of a broker" in done.stderr
