"""A task queue: one program hands out work, several workers share it, and nothing is lost when one of them fails.

    pip install ./client                     # once, in a virtual environment
    embermq run                              # in another terminal
    python examples/queues/task_queue.py

Task 3 fails once and is tried again. Task 5 can never succeed, so it becomes a dead letter.
"""

from __future__ import annotations

import argparse
import asyncio
from uuid import uuid4

from embermq_client import Client, Message

QUEUE = "examples/images"
TASKS = 12
WORKERS = 3


class Busy(Exception):
    """It may work later."""


def shrink(message: Message) -> str:
    """What the work is: here only a text, with the two ways in which it can fail."""
    task = message.payload.decode()
    if task == "image-5":
        raise ValueError("not an image")
    if task == "image-3" and message.delivery_count == 1:
        raise Busy("the disk is busy")
    return f"{task} is small now"


async def work(number: int, host: str, port: int, done: asyncio.Queue[str]) -> None:
    """Take a task, do it, say how it went. All workers have ids `imaging-...`, so they are one group, `imaging`."""
    async with (
        Client(host, port, client_id=f"imaging-{number}") as client,
        client.queue(QUEUE).consume(prefetch=4) as messages,
    ):
        async for message in messages:
            try:
                said = shrink(message)
            except Busy as error:
                print(f"worker {number}: {message.payload.decode()} again later: {error}")
                await message.nack(str(error), delay_s=0.2)
            except ValueError as error:
                print(f"worker {number}: {message.payload.decode()} never: {error}")
                await message.reject(str(error))
                await done.put(message.payload.decode())
            else:
                await message.ack()
                print(f"worker {number}: {said}")
                await done.put(message.payload.decode())


async def main(host: str, port: int) -> None:
    """Start the workers, hand out the tasks, wait until each has an end. A worker that fails ends the program."""
    done: asyncio.Queue[str] = asyncio.Queue()
    order = uuid4().hex
    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(work(number, host, port, done)) for number in range(WORKERS)]
        async with Client(host, port, client_id="uploads-1") as client:
            queue = client.queue(QUEUE)
            for number in range(TASKS):
                # The id makes this safe to repeat: a task of this order that is there already is not enqueued twice.
                await queue.publish(f"image-{number}", dedup_id=f"{order}/image-{number}")
        finished = {await done.get() for _ in range(TASKS)}
        for worker in workers:
            worker.cancel()
    print(f"{len(finished)} of {TASKS} tasks are finished")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=1883)
    options = parser.parse_args()
    asyncio.run(main(options.host, options.port))
