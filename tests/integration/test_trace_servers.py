"""`embermq trace` where the log is in Kafka and sessions are in Redis."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.kafka_dispatcher import KafkaDispatcher
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import run
from tests.support.traced_clients import three_messages
from tests.support.waiting import wait_until

from embermq.tools.trace_servers import ACKNOWLEDGED


async def fill(broker: BrokerProcess) -> None:
    """0, 1, 2 in t/a: application1 has acknowledged the first and refused the second, application2 all three, and is
    gone for good; dev-1 is away. 3 is in a queue."""
    publisher = await three_messages(broker.port, "application1", "application2")
    await publisher.publish("$queue/work", b"q", qos=1)
    publisher.close()


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-13")
def test_who_got_a_message_and_what_became_of_it(
    servers: dict[str, object], kafka: KafkaServer, tmp_path: Path
) -> None:
    settings = servers | {"clients.application_ids": "application*"}
    given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    before = datetime.now(UTC) - timedelta(hours=1)

    def trace(topic: str, *words: str, code: int = 0) -> dict[str, Any]:
        done = run_program("trace", topic, "--data-dir", broker.data_dir, "--json", *given, *words)
        assert done.returncode == code, done.stderr
        found: dict[str, Any] = json.loads(done.stdout) if not code else {"error": done.stderr}
        return found

    def outcomes(position: int, kind: str, topic: str = "t/a") -> dict[str, str]:
        return {one["to"]: one["outcome"] for one in trace(topic, "--position", f"0:{position}")[kind]}

    ended = "the session has ended, or a newer one has taken its place"
    with (
        BrokerProcess(tmp_path / "data", settings=settings) as broker,
        KafkaDispatcher(kafka, str(servers["kafka.prefix"])),
    ):
        run(fill(broker), 120)
        wait_until(
            lambda: (
                outcomes(2, "applications") == {"application1": "waits in its log", "application2": ended}
            ),
            60,
            "the log of the application has it",
            poll_s=0.5,
        )
        wait_until(lambda: outcomes(0, "applications")["application1"] == ACKNOWLEDGED, 60, "it is stored")
        assert outcomes(1, "applications")["application1"] == "refused"
        assert outcomes(0, "sessions") == {"dev-1": "waits, stored"}
        first, last = trace("t/a", "--position", "0"), trace("t/a", "--position", "0:2")
        told = (first["publisher"], first["qos"], first["payload_bytes"], first["found_in"])
        assert told == ("pub", 1, 1, "the log")
        assert (first["is_retained_now"], last["is_retained_now"]) == (False, True)
        assert trace("t/a", "--time", before.isoformat())["position"] == "0:0"
        (queued,) = trace("$queue/work", "--position", "3")["queues"]
        assert (queued["to"], queued["outcome"]) == ("work", "is in the queue")
        for words, code, said in (
            (("t/b", "--position", "0"), 1, "0:0 is a message of topic 't/a', not of 't/b'"),
            (("t/a", "--position", "99"), 1, "the log ends before 0:99, at 0:4"),
            (("t/b", "--time", "2026-01-01"), 1, "no message of topic 't/b' was accepted at"),
            (("$queue/work", "--message", "9-9"), 1, "the queue 'work' has no message '9-9'"),
        ):
            assert said in trace(*words, code=code)["error"], words
