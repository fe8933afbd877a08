"""Waiting for something slow, on a thread that the process may leave alone at its end."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TypeVar

Answer = TypeVar("Answer")


async def on_own_thread(call: Callable[[], Answer], name: str) -> Answer:
    """What `call` returns or raises. Who is cancelled meanwhile leaves it to itself; unlike a thread of the event
    loop's pool it does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not future.done():
            set_outcome()

    def run() -> None:
        try:
            outcome = partial(future.set_result, call())
        except Exception as error:
            outcome = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: the broker has ended
            loop.call_soon_threadsafe(settle, outcome)

    Thread(target=run, name=name, daemon=True).start()
    return await future
