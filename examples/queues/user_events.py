"""Ordered user events: each user's events are handled in their order, those of different users side by side.

    pip install ./client                     # once, in a virtual environment
    embermq run                              # in another terminal
    python examples/queues/user_events.py

The key says which messages belong together. One event of Ann's fails at first: her later events wait for it, while
those of the others go on.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import defaultdict

from embermq_client import Client

QUEUE = "examples/user-events"
USERS = ("ann", "bob", "eve")
EVENTS = ("signed-up", "added-card", "bought", "moved", "left")
CONSUMERS = 2


class Ledger:
    """What was handled, by user, in the order in which it was."""

    def __init__(self) -> None:
        self.handled: defaultdict[str, list[str]] = defaultdict(list)
        self.complete = asyncio.Event()

    def add(self, user: str, event: str) -> None:
        self.handled[user].append(event)
        if sum(len(events) for events in self.handled.values()) == len(USERS) * len(EVENTS):
            self.complete.set()


async def handle(number: int, host: str, port: int, ledger: Ledger) -> None:
    """One of several consumers; which user it has is the broker's decision."""
    async with (
        Client(host, port, client_id=f"bookkeeping-{number}") as client,
        client.queue(QUEUE).consume() as messages,
    ):
        async for message in messages:
            user, event = str(message.key), message.payload.decode()
            if (user, event) == ("ann", "added-card") and message.delivery_count == 1:
                print(f"consumer {number}: {user} {event}: the bank does not answer, again in 0.3 s")
                await message.nack("the bank does not answer", delay_s=0.3)
                continue
            print(f"consumer {number}: {user} {event}")
            # Write it down before the ack. If this program ends between the two, the event comes again: what is
            # written should show by `message.id` that it is there already.
            ledger.add(user, event)
            await message.ack()


async def main(host: str, port: int) -> None:
    """Publish what the users do, in the order in which they do it. A consumer that fails ends the program."""
    ledger = Ledger()
    async with asyncio.TaskGroup() as group:
        consumers = [group.create_task(handle(number, host, port, ledger)) for number in range(CONSUMERS)]
        async with Client(host, port, client_id="website-1") as client:
            queue = client.queue(QUEUE)
            for event in EVENTS:
                for user in USERS:
                    await queue.publish(event, key=user)
        await ledger.complete.wait()
        for consumer in consumers:
            consumer.cancel()
    for user in USERS:
        in_order = ledger.handled[user] == list(EVENTS)
        print(f"{user}: {'in order' if in_order else 'OUT OF ORDER'}: {', '.join(ledger.handled[user])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=1883)
    options = parser.parse_args()
    asyncio.run(main(options.host, options.port))
