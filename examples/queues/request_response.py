"""Request and response: ask whoever can answer, without knowing who that is, and wait no longer than you want.

    pip install ./client                     # once, in a virtual environment
    embermq run                              # in another terminal
    python examples/queues/request_response.py

Two servers share the questions. The last question is for a queue that nobody serves, so it runs into its time limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from embermq_client import Client, RequestTimeout

QUEUE = "examples/squares"
SERVERS = 2


async def serve(number: int, host: str, port: int) -> None:
    """Answer, then ack: a server that fails in between leaves the question to the other one."""
    async with (
        Client(host, port, client_id=f"squares-{number}") as client,
        client.queue(QUEUE).consume() as messages,
    ):
        async for message in messages:
            asked = json.loads(message.payload)
            await message.reply(json.dumps({"square": asked * asked, "server": number}))
            await message.ack()


async def main(host: str, port: int) -> None:
    """Ask."""
    servers = [asyncio.create_task(serve(number, host, port)) for number in range(SERVERS)]
    async with Client(host, port, client_id="pupil-1") as client:
        queue = client.queue(QUEUE)
        asked = range(8)
        answers = await asyncio.gather(*(queue.request(json.dumps(each), timeout_s=10) for each in asked))
        for each, answer in zip(asked, answers, strict=True):
            said = json.loads(answer.payload)
            print(f"{each} squared is {said['square']}, says server {said['server']}")
        try:
            await client.request("examples/nobody-serves-this", "hello?", timeout_s=0.5)
        except RequestTimeout as error:
            print(f"nobody answered: {error}")
    for server in servers:
        server.cancel()
    await asyncio.gather(*servers, return_exceptions=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=1883)
    options = parser.parse_args()
    asyncio.run(main(options.host, options.port))
