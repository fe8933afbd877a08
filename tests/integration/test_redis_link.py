"""What the link to Redis promises its stores, on a real server."""

from __future__ import annotations

from tests.support.redis_asking import APPEND, Asking, linked, on_the_loop
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for

from embermq.adapters.redis.answers import Answer, Refused
from embermq.adapters.redis.script import script
from embermq.adapters.redis.settings import RedisSettings

KEYS = 20
BREAK = script("break", b"return redis.call('LPUSH', KEYS[1], 'a')")


def stumble(answer: Answer) -> None:
    raise RuntimeError(f"not {answer!r}")


def assert_in_order(asking: Asking, server: RedisServer) -> None:
    """Every number was answered once and in order, and came to the server in order."""
    assert asking.in_order and not asking.waiting
    for key, asked in asking.asked.items():
        words = server.ask("HGETALL", key)
        fields = dict(zip(words[::2], words[1::2], strict=True))
        assert int(fields[b"last"]) == asked - 1
        assert b"gaps" not in fields


@on_the_loop
async def test_commands_go_in_batches(redis_server: RedisServer) -> None:
    async with linked(redis_server.url, RedisSettings(batch_commands=100)) as link:
        asking = Asking(link, KEYS)
        asking.append(each=50)
        await asking.all_answered()
        assert link.statistics().commands == 1000
        assert 10 <= link.statistics().round_trips <= 25
        assert link.statistics().waiting == link.waiting_bytes == 0
    assert_in_order(asking, redis_server)


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
    assert_in_order(asking, redis_server)


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
    assert_in_order(asking, redis_server)


@on_the_loop
async def test_one_who_cannot_take_an_answer_harms_no_other(redis_server: RedisServer) -> None:
    async with linked(redis_server.url) as link:
        asking = Asking(link, KEYS)
        asking.append()
        link.command(asking.keys[0], ("PING",), stumble)
        asking.append()
        await asking.all_answered()
    assert_in_order(asking, redis_server)
