"""Dead-letter monitoring: messages that no retry helped are a queue of their own, which says of each why.

    pip install ./client                     # once, in a virtual environment
    embermq run                              # in another terminal
    python examples/queues/dead_letters.py

Consuming a dead letter and acking it deletes it. To look without consuming, or to send letters back once the cause is
gone, use `embermq queues dlq` or the REST API; to be told of each at once, give the queue an `alert_webhook`, and
check what it posts with `embermq_client.is_genuine`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter

from embermq_client import Client, Message

QUEUE = "examples/orders"
ORDERS = ("order-1", "order-2", "not an order", "order for a customer who is gone")


async def settle(message: Message) -> None:
    """Two orders are fine, one makes no sense, and one fails however often it is tried."""
    if message.payload == b"not an order":
        await message.reject("makes no sense")
    elif b"gone" in message.payload:
        await message.nack(
            "no such customer", delay_s=0.01
        )  # the queue's own schedule would wait longer each time
    else:
        await message.ack()


async def sell(host: str, port: int) -> None:
    """The consumer of the orders."""
    async with (
        Client(host, port, client_id="shop-1") as client,
        client.queue(QUEUE).consume() as messages,
    ):
        async for message in messages:
            await settle(message)


async def watch(host: str, port: int) -> Counter[str]:
    """Count dead letters by their reason, until both have come."""
    reasons: Counter[str] = Counter()
    async with (
        Client(host, port, client_id="operators-1") as client,
        client.queue(f"dlq/{QUEUE}").consume() as letters,
    ):
        async for message in letters:
            letter = message.dead_letter
            assert letter is not None
            print(
                f"{message.payload.decode()!r} of {letter.queue}, group {letter.group}: {letter.reason} after"
                f" {letter.attempts} deliveries, last error {letter.last_error!r}"
            )
            reasons[letter.reason] += 1
            await message.ack()
            if reasons.total() == 2:
                break
    return reasons


async def main(host: str, port: int) -> None:
    """Place the orders, and watch what becomes of those that fail."""
    async with asyncio.TaskGroup() as group:
        shop = group.create_task(sell(host, port))
        async with Client(host, port, client_id="checkout-1") as client:
            for order in ORDERS:
                await client.queue(QUEUE).publish(order)
        reasons = await watch(host, port)
        shop.cancel()
    print(", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=1883)
    options = parser.parse_args()
    asyncio.run(main(options.host, options.port))
