"""The broker is told to end while consumers hold messages: that is none of their failures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.mqtt_client import run
from tests.support.queue_worker import queue_broker, worker

QUEUES = """
[[queues]]
name = "once"
retry_policy.max_retries = 0
"""


@pytest.mark.promise("queues-19", "queues-25")
def test_what_consumers_hold_when_the_broker_ends_is_not_charged(tmp_path: Path) -> None:
    topic = "$queue/once"
    with queue_broker(tmp_path, QUEUES) as broker:

        async def held() -> None:
            clean = await worker(broker, "clean-1")
            kept = await worker(broker, "kept-1", clean_start=False, expiry_s=100)
            for taker in (clean, kept):
                await taker.consumes(topic)
            await clean.enqueues(topic, b"m")
            for taker in (clean, kept):
                assert (await taker.next()).count == 1
            assert await asyncio.to_thread(broker.stop) == 0

        run(held())
        broker.start()

        async def again() -> None:
            letters = await worker(broker, "letters-1")
            await letters.consumes("$queue/dlq/once")
            for group in ("clean", "kept"):
                taker = await worker(broker, f"{group}-2")
                await taker.consumes(topic)
                taken = await taker.next()
                assert (taken.payload, taken.count) == (b"m", 1)
                await taker.acks(taken)
            await letters.gets_nothing()

        run(again())
