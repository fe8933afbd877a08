"""What a durable queue costs on Redis: `python -m benchmarks.redis_queues [--messages N]`, beside `queue_depth`.

A queue is filled by ticks of 100, read as at a start, and some of it is delivered and acknowledged. It has a
redis-server of its own on a free port; the message log, sockets and packets are not in that. Times are those of the
processor: of the broker's part, and of Redis (INFO cpu).
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
import typer

from benchmarks.queue_depth import CONSUMER, GROUP, QUEUE, SETTLED, TICK_MESSAGES, memory_bytes
from benchmarks.redis_scripts import Server, serve
from embermq.adapters.redis import state_writer
from embermq.adapters.redis.address import RedisSettings, parse_address
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.owners import Owners
from embermq.adapters.redis.queue_owners import QueueOwners
from embermq.adapters.redis.queue_store import RedisQueueStore
from embermq.adapters.redis.state_writer import RedisStateWriter
from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.model.tick_writes import TickWrites
from embermq.queues.consumer import Newcomer
from embermq.queues.names import Verb
from embermq.queues.publication import Publication
from embermq.queues.queues import Queues
from embermq.queues.settings import GroupSettings, parse_settings
from embermq.queues.settling import SettleRequest

WAITING_MAX = 20
"""Ticks on their way to Redis."""


class Broker:
    """Queues on Redis, and what the broker would do between its ticks."""

    def __init__(self, url: str) -> None:
        address, settings = parse_address(url), RedisSettings()
        owners = QueueOwners()
        post = asyncio.get_running_loop().call_soon
        self.link = RedisLink(address, settings, state_writer.SCRIPTS)
        self._tick = TickWrites()
        with BlockingRedis(address, settings) as blocking:
            self.store = RedisQueueStore(blocking, self.link, owners, post)
            self.core = Queues(GroupSettings(), self.store.next_generation(), lambda: self._tick.queues)
            self.core.restore(self.store.load(), wall_ms())
        self.writer = RedisStateWriter(self.link, Owners(), post, queues=owners)
        self.link.start()
        self.log_end = 0

    async def commit(self, records: list[bytes]) -> int:
        """A tick; returns the offset of its first record."""
        writes, self._tick = self._tick, TickWrites()
        writes.records = records
        base, self.log_end = self.log_end, self.log_end + len(records)
        self.writer.submit(writes, base, self.log_end, lambda: None)
        await asyncio.sleep(0)
        while self.writer.waiting_ticks > WAITING_MAX:  # noqa: ASYNC110 - nobody tells of the last answer
            await asyncio.sleep(0.001)
        return base

    async def fill(self, messages: int, payload_bytes: int) -> None:
        """Publishes."""
        core, now_ms, body = self.core, wall_ms(), bytes(payload_bytes)
        core.configure(parse_settings(QUEUE, msgspec.json.encode({"limits": {"max_queue_depth": messages}})))
        core.open_group(QUEUE, GROUP, now_ms)
        for first in range(0, messages, TICK_MESSAGES):
            count = min(TICK_MESSAGES, messages - first)
            records = [
                encode_record(Message(f"$queue/{QUEUE}", body, 1, False, "producer-1", 5, now_ms))
                for _ in range(count)
            ]
            tickets = [
                core.accept(QUEUE, Publication(), payload_bytes, number, now_ms).ticket
                for number in range(count)
            ]
            base = await self.commit(records)
            for number, ticket in enumerate(tickets):
                core.commit(QUEUE, [(ticket, base + number)])
        await self.drain()

    async def settle(self) -> int:
        """Deliver and acknowledge `SETTLED` messages, or all; returns how many."""
        core, now_ms, done = self.core, wall_ms(), 0
        core.join(QUEUE, GROUP, Newcomer(CONSUMER, 1, TICK_MESSAGES), now_ms)
        while done < SETTLED and (deliveries := core.run(now_ms)):
            for delivery in deliveries:
                core.written((delivery,), now_ms)
                request = SettleRequest(Verb.ACK, (delivery.stamps.message_id,), GROUP)
                core.settle(QUEUE, request, CONSUMER, 1, now_ms)
            await self.commit([])
            done += len(deliveries)
        await self.drain()
        return done

    async def drain(self) -> None:
        """Until Redis has answered."""
        while self.writer.waiting_ticks:  # noqa: ASYNC110 - nobody tells of the last answer
            await asyncio.sleep(0.001)


def wall_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def main(
    messages: Annotated[int, typer.Option(help="Depth.")] = 100_000,
    payload_bytes: Annotated[int, typer.Option(min=0)] = 1024,
    append_only: Annotated[bool, typer.Option(help="With appendonly yes, appendfsync everysec.")] = True,
) -> None:
    """The cost of a publish, of a start and of an acknowledgement."""
    with serve(append_only=append_only) as server:
        asyncio.run(_measure(server, messages, payload_bytes))


async def _measure(server: Server, messages: int, payload_bytes: int) -> None:
    url = server.url
    broker = Broker(url)
    clock = _Clock(server.cpu_s)
    await broker.fill(messages, payload_bytes)
    typer.echo(f"{messages:,} messages of {payload_bytes} bytes: a publish {clock.costs(messages)}")
    await broker.link.close()
    del broker
    before_bytes = memory_bytes()
    clock, began_s = _Clock(server.cpu_s), time.monotonic()
    broker = Broker(url)
    typer.echo(
        f"read at a start in {time.monotonic() - began_s:.1f} s: a message {clock.costs(messages)}; "
        f"{(memory_bytes() - before_bytes) / 1e6:.0f} MB more, at most "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB in all"
    )
    clock = _Clock(server.cpu_s)
    typer.echo(f"delivered and acknowledged {clock.costs(await broker.settle())}")
    await broker.link.close()


class _Clock:
    def __init__(self, redis_s: Callable[[], float]) -> None:
        self._redis_s = redis_s
        self._began = (time.process_time(), redis_s())

    def costs(self, messages: int) -> str:
        """Since it was made, for each message."""
        own = (time.process_time() - self._began[0]) / messages * 1e6
        other = (self._redis_s() - self._began[1]) / messages * 1e6
        return f"{own:.1f} us here, {other:.1f} us of Redis"


if __name__ == "__main__":
    typer.run(main)
