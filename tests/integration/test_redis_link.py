"""What the link to Redis promises its stores, on a real server."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.held_path import HeldPath
from tests.support.redis_asking import APPEND, FREE, Asking, linked, on_the_loop
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for

from embermq.adapters.redis import channel
from embermq.adapters.redis.address import RedisSettings
from embermq.adapters.redis.answers import Answer, Refused
from embermq.adapters.redis.script import script

KEYS = 20
BREAK = script("break", b"return redis.call('GET', KEYS[1])")


def stumble(answer: Answer) -> None:
    raise RuntimeError(f"not {answer!r}")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for as long as in earnest."""
    monkeypatch.setattr(channel, "BREAKER_FAILURES", 3)
    monkeypatch.setattr(channel, "BREAKER_PAUSE_S", 0.1)
    monkeypatch.setattr(channel, "WAIT_TIMEOUT_MS", 50)


@pytest.mark.promise("device-10")
@on_the_loop
async def test_commands_go_in_batches(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "BATCH_COMMANDS", 100)
    async with linked(redis_server.url) as link:
        asking = Asking(link, KEYS)
        asking.append(each=50)
        await asking.all_answered()
        assert link.statistics().commands == 1000
        assert 10 <= link.statistics().round_trips <= 25
        assert link.statistics().waiting == link.waiting_bytes == 0
    asking.assert_done(asking.lists(redis_server))


@pytest.mark.promise("device-10")
@on_the_loop
async def test_a_command_waits_for_company_as_long_as_it_may(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: dict[float, int] = {}
    for batch_s in (0.0, 0.2):
        monkeypatch.setattr(channel, "BATCH_S", batch_s)
        async with linked(redis_server.url) as link:
            asking = Asking(link, KEYS)
            asking.append(each=1)
            await asking.all_answered()
            before = link.statistics().round_trips
            for _ in range(20):
                asking.append(each=1)
                await asyncio.sleep(0)  # a turn of the event loop: what is to be sent is sent
            await asking.all_answered()
            batches[batch_s] = link.statistics().round_trips - before
    assert batches[0.2] <= 2 < batches[0.0]


@on_the_loop
async def test_what_is_asked_before_the_connection_waits_for_it(redis_server: RedisServer) -> None:
    redis_server.stop()
    async with linked(redis_server.url) as link:
        asking = Asking(link, KEYS)
        asking.append(each=5)
        assert link.waiting_bytes > 0
        await wait_for(lambda: link.failing)
        assert link.failing == f"redis 127.0.0.1:{redis_server.port}: Connection refused"
        redis_server.start()
        await asking.all_answered()
        assert link.failing == ""
    asking.assert_done(asking.lists(redis_server))


@on_the_loop
async def test_a_broken_operation_is_refused_alone(redis_server: RedisServer) -> None:
    async with linked(redis_server.url, scripts=(APPEND, BREAK)) as link:
        asking = Asking(link, KEYS)
        asking.append()
        answers: list[Answer] = []
        link.ask(asking.keys[0], BREAK, [asking.keys[0]], [], answers.append)
        link.command(asking.keys[0], ("GET", asking.keys[0]), answers.append)
        asking.append()
        await asking.all_answered()
        assert [type(answer) for answer in answers] == [Refused, Refused]
        assert link.statistics().refused == 2
        assert link.failing == ""
    asking.assert_done(asking.lists(redis_server))


@on_the_loop
async def test_one_who_cannot_take_an_answer_harms_no_other(redis_server: RedisServer) -> None:
    async with linked(redis_server.url) as link:
        asking = Asking(link, KEYS)
        asking.append()
        link.command(asking.keys[0], ("PING",), stumble)
        asking.append()
        await asking.all_answered()
    asking.assert_done(asking.lists(redis_server))


@on_the_loop
async def test_scripts_that_the_server_forgot_are_loaded_again(redis_server: RedisServer) -> None:
    async with linked(redis_server.url) as link:
        asking = Asking(link, KEYS)
        for _ in range(20):
            asking.append(each=10)
            await asyncio.sleep(0.003)
            redis_server.ask("SCRIPT", "FLUSH")
        await asking.all_answered()
        assert link.statistics().retries > 0
        assert link.statistics().connections == 1
    asking.assert_done(asking.lists(redis_server))


@on_the_loop
async def test_a_killed_server_comes_back(redis_server: RedisServer) -> None:
    async with linked(redis_server.url, RedisSettings()) as link:
        asking = Asking(link, KEYS)
        for number in range(60):
            asking.append(each=10)
            if number == 20:
                redis_server.kill()
            if number == 25:
                await wait_for(lambda: link.is_away(asking.keys[0]))
                assert "Connection refused" in link.failing
                assert link.waiting_bytes > 0
            if number == 40:
                redis_server.start()
            await asyncio.sleep(0.003)
        await asking.all_answered()
        assert not link.failing and not link.is_away(asking.keys[0])
        assert link.statistics().connections == 2
    asking.assert_done(asking.lists(redis_server))


@on_the_loop
async def test_a_server_that_stands_still_is_given_up_and_asked_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "CONNECT_TIMEOUT_S", 0.2)
    patience = RedisSettings(command_timeout_s=0.3)
    async with linked(redis_server.url, patience) as link:
        asking = Asking(link, KEYS)
        asking.append()
        await asking.all_answered()
        redis_server.pause()
        asking.append(each=100)
        await wait_for(lambda: link.failing)
        assert link.failing.endswith("no answer for 0.3 s")
        await wait_for(lambda: link.failing.endswith("no connection within 0.2 s"))
        asking.append(each=100)
        redis_server.resume()
        await asking.all_answered()
        assert link.failing == ""
        assert link.statistics().connections >= 2
    asking.assert_done(asking.lists(redis_server))


@on_the_loop
async def test_nothing_of_a_connection_that_was_given_up_comes_late(redis_server: RedisServer) -> None:
    patience = RedisSettings(command_timeout_s=0.2)
    async with (
        HeldPath(redis_server.port) as path,
        linked(f"redis://127.0.0.1:{path.port}", patience) as link,
    ):
        asking = Asking(link, KEYS)
        asking.append()
        await asking.all_answered()
        path.hold()
        asking.append(each=20)
        await asking.all_answered()
        assert path.held_bytes > KEYS * 20 * 50
        await path.release()
        asking.append()
        await asking.all_answered()
    asking.assert_done(asking.lists(redis_server))


@on_the_loop
async def test_a_full_server_is_told_of_and_waited_for(redis_server: RedisServer) -> None:
    async with linked(redis_server.url, scripts=(APPEND, FREE)) as link:
        asking = Asking(link, KEYS)
        asking.append()
        await asking.all_answered()
        redis_server.ask("CONFIG", "SET", "maxmemory", "1")
        asking.append(each=3)
        await wait_for(lambda: link.failing)
        assert link.failing.startswith("OOM command not allowed when used memory > 'maxmemory'")
        freed: list[Answer] = []
        link.ask("other", FREE, ["other"], [], freed.append)
        await wait_for(lambda: freed == [0])
        assert asking.waiting == 3 * KEYS
        redis_server.ask("CONFIG", "SET", "maxmemory", "0")
        await asking.all_answered()
        await wait_for(lambda: not link.failing)
    asking.assert_done(asking.lists(redis_server))


@on_the_loop
async def test_a_server_that_cannot_save_is_told_of_and_waited_for(redis_server: RedisServer) -> None:
    async with linked(redis_server.url) as link:
        asking = Asking(link, KEYS)
        redis_server.ask("CONFIG", "SET", "min-replicas-to-write", "1")
        asking.append(each=2)
        await wait_for(lambda: link.failing)
        assert link.failing.startswith("NOREPLICAS")
        redis_server.ask("CONFIG", "SET", "min-replicas-to-write", "0")
        await asking.all_answered()
        await wait_for(lambda: not link.failing)
    asking.assert_done(asking.lists(redis_server))


@on_the_loop
async def test_closing_waits_for_what_was_asked(redis_server: RedisServer) -> None:
    async with linked(redis_server.url) as link:
        asking = Asking(link, KEYS)
        asking.append(each=10)
        assert await link.close(drain_s=10)
    asking.assert_done(asking.lists(redis_server))


@on_the_loop
async def test_closing_does_not_wait_for_ever(redis_server: RedisServer) -> None:
    async with linked(redis_server.url) as link:
        asking = Asking(link, KEYS)
        redis_server.pause()
        asking.append(each=10)
        assert not await link.close(drain_s=0.05)
