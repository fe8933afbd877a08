"""The room of dead letters, on a running broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.queue_worker import queue_broker, worker
from tests.support.waiting import wait_until

from embermq.queues.settings import DEAD_LETTERS_SHARE

BUDGET_BYTES = 16 * 1024 * 1024
BODY_BYTES = 100_000
"""Of which there is room for sixteen."""
COUNT = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "log__disk_budget_bytes": BUDGET_BYTES,
        "log__retention_bytes": BUDGET_BYTES,
    }
    with queue_broker(tmp_path_factory.mktemp("letters"), "", **settings) as running:
        yield running


def api(broker: BrokerProcess, method: str, path: str) -> Any:
    answer = httpx.request(method, f"http://127.0.0.1:{broker.http_port}{path}", timeout=30)
    assert answer.is_success, answer.text
    return answer.json() if answer.headers["content-type"] == "application/json" else answer.text


def messages(broker: BrokerProcess, name: str) -> int:
    found: int = api(broker, "GET", f"/api/v1/queues/{name}/stats")["messages"]
    return found


@pytest.mark.promise("queues-34", "queues-42a")
def test_a_queue_keeps_what_has_no_room_as_a_dead_letter_and_says_so(broker: BrokerProcess) -> None:
    async def reject_all() -> None:
        taker = await worker(broker, "letters-1")
        await taker.consumes("$queue/full")
        await taker.enqueues("$queue/full", *[bytes(BODY_BYTES)] * COUNT)
        for taken in await taker.take(COUNT):
            assert await taker.says("reject", taken) == (0, "")
        await taker.gets_nothing()

    run(reject_all())
    buried = messages(broker, "dlq$full")
    assert 8 <= buried <= 16 and messages(broker, "full") == COUNT - buried
    metrics = api(broker, "GET", "/metrics")
    (used,) = re.findall(r"^mqtt_queue_dlq_bytes (\S+)$", metrics, re.MULTILINE)
    (limit,) = re.findall(r"^mqtt_queue_dlq_bytes_max (\S+)$", metrics, re.MULTILINE)
    assert float(limit) == int(BUDGET_BYTES * DEAD_LETTERS_SHARE) and 0.8 * float(limit) < float(
        used
    ) <= float(limit)
    assert "letters_full" in {each["code"] for each in api(broker, "GET", "/api/v1/queues/full/explain")}
    wait_until(lambda: "queues keep what would become one" in broker.output())

    async def look() -> None:
        taker = await worker(broker, "letters-1")
        await taker.consumes("$queue/full")
        await taker.gets_nothing()

    broker.kill()
    broker.start()
    run(look())
    assert (messages(broker, "full"), messages(broker, "dlq$full")) == (COUNT - buried, buried)
    api(broker, "POST", "/api/v1/queues/dlq$full/purge")
    broker.restart()  # what waits for room is tried again at once
    wait_until(lambda: messages(broker, "full") == 0)
    assert messages(broker, "dlq$full") == COUNT - buried


@pytest.mark.promise("queues-34")
def test_a_reject_of_a_dead_letter_counts_as_dropped(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        taker = await worker(broker, "rejecting-1")
        await taker.consumes("$queue/rejecting")
        await taker.consumes("$queue/dlq/rejecting")
        await taker.enqueues("$queue/rejecting", b"m")
        for _ in range(2):
            assert await taker.says("reject", await taker.next()) == (0, "")

    run(scenario())
    stats = api(broker, "GET", "/api/v1/queues/dlq$rejecting/stats")
    assert (stats["messages"], stats["dropped"]) == (0, {"rejected": 1})
    settings = api(broker, "GET", "/api/v1/queues/dlq$rejecting")["settings"]
    assert settings["limits"]["message_ttl"] in ("0s", "0ms")
