"""What consumers hold stays with them while the message log or the store does not answer, for longer than a lease."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import run
from tests.support.queue_worker import Taken, queue_broker, worker
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Publish
from embermq.queues.consumer_clock import PATIENCE_MS

TOPIC = "$queue/work"
QUEUES = """
[[queues]]
name = "work"
ordering = "none"
performance.delivery_timeout = "{lease_s}s"
performance.prefetch = 2
retry_policy.initial_backoff = "10ms"
"""
LEASE_S = 5


@pytest.mark.promise("queues-22", "queues-14")
@pytest.mark.parametrize("server", ["kafka", "redis"])
def test_nobody_else_gets_what_a_consumer_could_not_settle(
    server: str, kafka: KafkaServer, redis_server: RedisServer, servers: dict[str, object], tmp_path: Path
) -> None:
    paused = kafka if server == "kafka" else redis_server
    given = {name.replace(".", "__"): value for name, value in servers.items()}
    broker = queue_broker(tmp_path, QUEUES.format(lease_s=LEASE_S), **given, redis__command_timeout_s=1)

    async def outage() -> None:
        producer, taker, other = [await worker(broker, each) for each in ("producer", "w-1", "w-2")]
        await taker.consumes(TOPIC)
        await producer.enqueues(TOPIC, b"held", b"next")
        held, following = await taker.take(2)
        await other.consumes(TOPIC)
        paused.pause()
        over_s = time.monotonic() + 2 * LEASE_S + PATIENCE_MS / 1_000
        producer.send(Publish(TOPIC, b"in the outage", 1, producer.next_id()))  # the log is busy with it
        settling = asyncio.ensure_future(taker.acks(held))
        await wait_for(lambda: time.monotonic() > over_s, 60, "two leases would be over")
        assert not settling.done()
        assert other.inbox.empty(), "the next one is the first one's still"
        paused.resume()
        await settling
        await taker.acks(following)
        late = await asyncio.wait_for(_first(taker.inbox, other.inbox), 60)
        assert (late.payload, late.count) == (b"in the outage", 1)
        again = await asyncio.wait_for(_first(taker.inbox, other.inbox), 60)
        assert (again.payload, again.count) == (b"in the outage", 2), "leases end as ever"

    with broker:
        try:
            run(outage())
        finally:
            paused.heal()


async def _first(*inboxes: asyncio.Queue[Taken]) -> Taken:
    waits = [asyncio.ensure_future(each.get()) for each in inboxes]
    done, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for each in others:
        each.cancel()
    return done.pop().result()
