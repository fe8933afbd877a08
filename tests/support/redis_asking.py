"""Asking a link and collecting what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import ParamSpec

from tests.support.mqtt_client import run as run_on_the_loop
from tests.support.redis_server import RedisServer

from embermq.adapters.redis.address import RedisSettings, parse_address
from embermq.adapters.redis.answers import Answer
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.script import Script, script

APPEND = script(
    "append",
    b"#!lua\nredis.call('RPUSH', KEYS[1], ARGV[1]) return tonumber(ARGV[1])",
)
"""Writes down each number of a key as often as it comes, and answers with it."""
FREE = script("free", b"#!lua flags=allow-oom\nreturn redis.call('DEL', KEYS[1])")


class Asking:
    """Appends to many keys, and knows what was answered."""

    def __init__(self, link: RedisLink, keys: int) -> None:
        self.link = link
        self.keys = [f"{link.prefix}s:ol:{{client-{number}}}" for number in range(keys)]
        self.asked = dict.fromkeys(self.keys, 0)
        self.answers: dict[str, list[Answer]] = {key: [] for key in self.keys}

    def append(self, *, each: int = 1) -> None:
        """The next numbers of every key."""
        for _ in range(each):
            for key in self.keys:
                number = self.asked[key]
                self.asked[key] = number + 1
                self.link.ask(key, APPEND, [key], [number], self.answers[key].append)

    def lists(self, server: RedisServer) -> dict[str, list[bytes]]:
        """What a server has."""
        return {key: server.ask("LRANGE", key, 0, -1) for key in self.keys}

    @property
    def waiting(self) -> int:
        return sum(self.asked.values()) - sum(map(len, self.answers.values()))

    @property
    def in_order(self) -> bool:
        """All was answered so far in the order in which it was asked."""
        return all(got == list(range(len(got))) for got in self.answers.values())

    def assert_done(self, lists: Mapping[str, Sequence[bytes]]) -> None:
        """All was answered once, in order, and written; and the last times of writing were in order."""
        assert self.in_order and not self.waiting
        for key, asked in self.asked.items():
            last = {int(number): place for place, number in enumerate(lists[key])}
            assert sorted(last) == list(range(asked)), key
            assert sorted(last.values()) == [last[number] for number in range(asked)], key

    async def all_answered(self, deadline_s: float = 60.0) -> None:
        """Wait; raises AssertionError with what is wrong."""
        end_s = asyncio.get_running_loop().time() + deadline_s
        while self.waiting:
            assert asyncio.get_running_loop().time() < end_s, (
                f"{self.waiting} of {sum(self.asked.values())} wait: {self.link.failing}, {self.link.statistics()}"
            )
            await asyncio.sleep(0.005)


@asynccontextmanager
async def linked(
    url: str, settings: RedisSettings | None = None, scripts: Sequence[Script] = (APPEND,)
) -> AsyncIterator[RedisLink]:
    """A link that has been started."""
    link = RedisLink(parse_address(url), settings or RedisSettings(), scripts)
    link.start()
    try:
        yield link
    finally:
        await link.close()


P = ParamSpec("P")


def on_the_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Run a test that is a coroutine, on the loop that the broker has. One that fails with its link open has failed,
    and is not waited for."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_on_the_loop(test(*args, **kwargs))

    return run
