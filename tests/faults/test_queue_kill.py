"""A broker that dies at any step of its work on a durable queue, on each store: before a write to the store, before a
sync of it, before an answer or a delivery leaves; consumers come and go, and dead letters are on their way back."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import suppress
from pathlib import Path
from random import Random

import httpx
import pytest
from tests.faults.queue_traffic import QUEUE, TOPIC, Consumer, Ledger, Producer, Reader
from tests.faults.traffic import Place
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.queue_worker import queue_broker
from tests.support.waiting import wait_for, wait_until

LIFE_S = 40.0
"""Longer than it takes to come to the step."""
QUEUES = f"""
[[queues]]
name = "{QUEUE}"
partitions = 6
retry_policy.nack_delay = "immediate"
retry_policy.max_retries = 1000
retry_policy.initial_backoff = "10ms"
retry_policy.max_backoff = "100ms"
performance.delivery_timeout = "1500ms"
"""
STEPS = {"write": (60, 700), "sync": (6, 50), "send": (40, 450)}
"""Kinds of calls (dying.c), and before which of them a life ends."""


def build(folder: Path) -> str:
    """The library that has a broker die."""
    library = folder / "dying.so"
    source = Path(__file__).with_name("dying.c")
    words = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(library), str(source), "-ldl"]
    subprocess.run(words, check=True, timeout=60)
    return str(library)


@pytest.mark.promise("queues-2", "queues-9", "queues-14", "queues-16", "queues-17", "queues-23")
@pytest.mark.promise("queues-34", "queues-35")
@pytest.mark.long_rounds
@pytest.mark.parametrize("place", ["embedded", pytest.param("servers", marks=pytest.mark.in_faults)])
def test_the_broker_dies_at_any_step(
    place: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    random = Random(seed)
    settings: dict[str, object] = {"queues.disconnect_grace_ms": 50, "queues.join_debounce_ms": 20}
    if place == "servers":
        settings |= request.getfixturevalue("servers")
    with queue_broker(tmp_path, QUEUES, **settings) as broker:
        run(lives(broker, random, build(tmp_path)), 200)
        assert "Traceback" not in broker.output()


async def lives(broker: BrokerProcess, random: Random, library: str) -> None:
    place, ledger = Place(broker.port), Ledger()
    producers = [
        Producer(place, f"producer-{name}", ledger, [f"{name}{n}" for n in range(5)]) for name in "ab"
    ]
    consumers = [Consumer(place, f"worker-{number}", ledger, random) for number in range(3)]
    audit = Reader(place, "audit", TOPIC, ledger.audited, behind=8)
    reader = Reader(place, "reader", f"$queue/dlq/{QUEUE}", ledger.letters)
    everybody = [audit, *consumers, *producers]
    for each in everybody:
        each.start()
        await wait_for(lambda each=each: each.client is not None)  # type: ignore[misc]
    redriving = asyncio.create_task(redrive(broker))
    is_on_servers = "stores.log" in broker.settings  # nothing is written to files there
    for kind in ["send"] * 4 if is_on_servers else random.sample(list(STEPS), len(STEPS)):
        broker.kill()
        at = str(random.randint(*STEPS[kind]))
        broker.env = {"LD_PRELOAD": library, "DYING_BEFORE": kind, "DYING_AT": at}
        broker.installed = True  # what is forked has its library already
        broker.launch()
        await wait_for(lambda: has_died(broker, producers), LIFE_S, f"the end before {kind} {at}")
        for each in everybody:
            each.check()
    broker.kill()
    redriving.cancel()
    broker.env = {}
    await asyncio.to_thread(broker.start)
    await wait_for(lambda: is_enough(ledger, producers), 30, "much was published, and some of it rejected")
    for producer in producers:
        producer.finishing = True
    for consumer in consumers:
        consumer.finishing = True
    audit.finish()
    await wait_for(lambda: all(each.is_done for each in producers), 30, "everything is answered")
    await wait_for(lambda: ledger.faults or ledger.backlog <= 0, 30, "every message was settled once")
    assert not ledger.faults, ledger.faults[:5]
    reader.start()

    def is_settled() -> bool:
        """What is owed falls with an ack, before the ack is durable and answered."""
        return all(each.is_answered for each in consumers) and is_empty(broker)

    await asyncio.to_thread(wait_until, is_settled, 30, "all is settled", poll_s=0.1)
    await wait_for(lambda: all(each.is_answered for each in consumers), 30, "what came last is answered")
    for each in (*everybody, reader):
        each.check()
        await each.stop()
    ledger.judge()


def is_enough(ledger: Ledger, producers: list[Producer]) -> bool:
    """Lives may have been short. They go on meanwhile."""
    for each in producers:
        each.fill()
    return len(ledger.published) > 100 and bool(ledger.rejected)


def has_died(broker: BrokerProcess, producers: list[Producer]) -> bool:
    """They go on meanwhile, as far as the backlog lets them."""
    for each in producers:
        each.fill()
    return not broker.is_running


async def redrive(broker: BrokerProcess) -> None:
    """Dead letters go back into their queue, again and again."""
    place = f"http://127.0.0.1:{broker.http_port}/api/v1/queues/{QUEUE}/dlq/retry"
    async with httpx.AsyncClient() as asking:
        while True:
            with suppress(httpx.HTTPError):
                await asking.post(place, timeout=5)
            await asyncio.sleep(0.3)


def is_empty(broker: BrokerProcess) -> bool:
    """Nothing is owed to any group, neither in the queue nor in its dead letters."""
    listed = httpx.get(f"http://127.0.0.1:{broker.http_port}/api/v1/queues", timeout=60)
    return not any(one["depth"] for one in listed.json())
