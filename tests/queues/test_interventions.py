"""What operators do to a queue while it is at work, on a running broker: by the command and the API."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.mqtt_client import run
from tests.support.queue_worker import worker

QUEUES = ""
"""The fixture `mortal` asks for it: no queue has settings of its own."""


def api(broker: BrokerProcess, method: str, path: str, status: int = 200) -> Any:
    """What is there, as JSON."""
    answer = httpx.request(method, f"http://127.0.0.1:{broker.http_port}/api/v1{path}", timeout=30)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def embermq(broker: BrokerProcess, *words: str, code: int = 0) -> str:
    done = run_program(*words, "--data-dir", broker.data_dir)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.mark.promise("queues-12", "queues-40")
def test_a_delayed_message_is_cancelled_by_its_id(broker: BrokerProcess) -> None:
    async def delay() -> None:
        client = await worker(broker, "delaying-1")
        await client.consumes("$queue/op/late")
        await client.enqueues("$queue/op/late", b"never", b"soon", delay="1h")
        client.close()

    run(delay())
    lines = embermq(broker, "queues", "delayed", "op/late").splitlines()
    assert "delayed until" in lines[0] and lines[1].strip() == "never"
    message_id = lines[0].split()[0]
    told = embermq(broker, "queues", "delete-message", "op/late", message_id)
    assert told == f"deleted message {message_id} of op/late\n"
    broker.kill()
    broker.start()
    (left,) = api(broker, "GET", "/queues/op$late/delayed")
    assert left["payload"] == "soon"
    assert message_id in embermq(broker, "queues", "delete-message", "op/late", message_id, code=1)


@pytest.mark.promise("queues-40", "queues-42a")
@pytest.mark.parametrize("group", ["", "pausing"])
def test_a_paused_queue_delivers_nothing_until_it_is_resumed(broker: BrokerProcess, group: str) -> None:
    queue, words = f"op/pause{group}", ["--group", group] if group else []

    async def scenario() -> None:
        client = await worker(broker, "pausing-1")
        await client.consumes(f"$queue/{queue}")
        told = embermq(broker, "queues", "pause", queue, *words)
        assert told == f"paused {'group pausing of ' if group else ''}{queue}\n"
        await client.enqueues(f"$queue/{queue}", b"1", b"2")
        await client.gets_nothing()
        assert "paused" in embermq(broker, "queues", "explain", queue)
        client.close()
        broker.kill()
        broker.start()
        client = await worker(broker, "pausing-1")
        await client.consumes(f"$queue/{queue}")
        await client.gets_nothing()
        assert embermq(broker, "queues", "resume", queue, *words).startswith("resumed ")
        assert {taken.payload for taken in await client.take(2)} == {b"1", b"2"}

    run(scenario())
