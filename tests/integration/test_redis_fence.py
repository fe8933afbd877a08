"""A broker that another one has taken over from writes nothing more into a Redis, whenever it wakes up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
from tests.support.redis_asking import APPEND, Asking, linked, on_the_loop
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for

from embermq.adapters.redis.address import RedisSettings, parse_address
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.log_notes import RedisLogNotes
from embermq.adapters.redis.queue_owners import QueueOwners
from embermq.adapters.redis.queue_store import SCRIPTS as QUEUE_SCRIPTS
from embermq.adapters.redis.queue_store import RedisQueueStore
from embermq.adapters.redis.script import Script
from embermq.model.queue_rows import QueueSettingsRow
from embermq.ports.errors import StoreError, TakenOver

KEYS = 20


class Servers:
    """One Redis, or a cluster of them."""

    def __init__(self, whole: RedisServer | RedisCluster, rest: str = "") -> None:
        self.whole, self.rest = whole, rest
        self.redis = BlockingRedis(parse_address(whole.url + rest), RedisSettings())
        self.notes = RedisLogNotes(self.redis, "redis")

    @property
    def masters(self) -> list[RedisServer]:
        return self.whole.masters() if isinstance(self.whole, RedisCluster) else [self.whole]

    def lists(self, asking: Asking) -> dict[str, object]:
        return {key: self.redis.command(key, "LRANGE", key, 0, -1) for key in asking.keys}

    def link(self, scripts: Sequence[Script] = (APPEND,)) -> RedisLink:
        return RedisLink(parse_address(self.whole.url + self.rest), RedisSettings(), scripts)


@pytest.fixture(params=["redis_server", "redis_cluster"])
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    found = Servers(request.getfixturevalue(request.param))
    yield found
    found.redis.close()


@on_the_loop
async def test_nothing_of_a_broker_before_takes_effect_once_it_was_taken_over(servers: Servers) -> None:
    ended: list[TakenOver] = []
    old, new = servers.link(), servers.link()
    old.start(servers.notes.take_over(), ended.append)
    first = Asking(old, KEYS)
    first.append(each=3)
    await first.all_answered()
    first.append()  # it stands still here: asked, and perhaps not sent
    epoch = servers.notes.take_over()
    seen = servers.lists(first)
    await wait_for(lambda: ended)
    assert f"knows a broker with epoch {epoch}, and this one has {epoch - 1}" in str(ended[0])
    first.append()
    new.start(epoch, ended.append)
    second = Asking(new, 3 * KEYS)
    second.keys = second.keys[KEYS:]
    second.append(each=3)
    await second.all_answered()
    assert servers.lists(first) == seen
    assert all(len(got) == 3 for got in first.answers.values())
    await asyncio.gather(old.close(), new.close())


@on_the_loop
async def test_a_queue_is_said_to_be_still_ours_until_another_broker_has_it(servers: Servers) -> None:
    link = servers.link(QUEUE_SCRIPTS)
    owners = QueueOwners()
    owners.take(QueueSettingsRow(1, "work", b"{}", 1))
    queues = RedisQueueStore(servers.redis, link, owners, lambda call: call())
    told: list[str] = []
    queues.confirm(1, partial(told.append, "nobody else can be told to be newer"))
    assert told
    ended: list[TakenOver] = []
    link.start(servers.notes.take_over(), ended.append)
    queues.confirm(1, partial(told.append, "ours"))
    assert len(told) == 1, "it is asked"
    await wait_for(lambda: len(told) == 2)
    servers.notes.take_over()
    queues.confirm(1, partial(told.append, "not ours any more"))
    # Each time that it connects again, a server says so once more.
    await wait_for(lambda: len(set(map(str, ended))) == len(servers.masters))
    await link.close()
    assert len(told) == 2


@on_the_loop
async def test_a_server_that_has_lost_the_epoch_is_told_it_again(servers: Servers) -> None:
    ended: list[TakenOver] = []
    old, new = servers.link(), servers.link()
    old_epoch, epoch = servers.notes.take_over(), servers.notes.take_over()
    new.start(epoch, ended.append)
    asking = Asking(new, KEYS)
    asking.append()
    await asking.all_answered()
    for master in servers.masters:
        master.ask("FLUSHALL")
    old.start(old_epoch, ended.append)
    before = Asking(old, KEYS)
    before.append()
    await before.all_answered()
    for master in servers.masters:
        for line in master.ask("CLIENT", "LIST").splitlines():
            if f"name=embermq-{epoch} ".encode() in line:
                master.ask("CLIENT", "KILL", "ID", line.split(b" ")[0].removeprefix(b"id="))
    asking.append()
    await asking.all_answered()
    await wait_for(lambda: ended)
    assert f"knows a broker with epoch {epoch}" in str(ended[0])
    await asyncio.gather(old.close(), new.close())


@on_the_loop
async def test_a_broker_in_no_cluster_gives_way_too_and_starts_when_it_is_alone(servers: Servers) -> None:
    ended: list[TakenOver] = []
    old = servers.link()
    old.start(servers.notes.epoch(), ended.append)
    asking = Asking(old, KEYS)
    asking.append()
    await asking.all_answered()
    epoch = servers.notes.take_over()
    # Each time that it connects again, a server says so once more.
    await wait_for(lambda: len(set(map(str, ended))) == len(servers.masters))
    await old.close()
    told = len(ended)
    assert servers.notes.epoch() == epoch
    again = servers.link()
    again.start(epoch, ended.append)
    asking = Asking(again, KEYS)
    asking.append()
    await asking.all_answered()
    assert len(ended) == told
    await again.close()


@on_the_loop
async def test_epochs_rise_also_when_the_count_is_lost(redis_server: RedisServer) -> None:
    servers = Servers(redis_server)
    epochs = [servers.notes.take_over() for _ in range(3)]
    redis_server.ask("DEL", "embermq:log")
    epochs.append(servers.notes.take_over())
    assert epochs == [1, 2, 3, 4]
    servers.redis.close()


@pytest.mark.parametrize(("whose", "other"), [("", "?slot=1"), ("?slot=1", ""), ("", "/2")])
@on_the_loop
async def test_other_slots_and_other_databases_are_left_alone(
    redis_server: RedisServer, whose: str, other: str
) -> None:
    servers = Servers(redis_server, whose)
    async with linked(f"{redis_server.url}{other}") as link:
        asking = Asking(link, KEYS)
        asking.append()
        await asking.all_answered()
        servers.notes.take_over()
        asking.append()
        await asking.all_answered()
        assert link.statistics().connections == 1
    servers.redis.close()


def test_a_redis_that_does_not_let_others_be_ended_is_refused(redis_server: RedisServer) -> None:
    redis_server.ask("ACL", "SETUSER", "ember", "on", ">secret", "~*", "+@all", "-client|list")
    redis = BlockingRedis(
        parse_address(f"redis://ember:secret@127.0.0.1:{redis_server.port}"), RedisSettings()
    )
    try:
        with pytest.raises(StoreError, match="CLIENT LIST and CLIENT KILL"):
            RedisLogNotes(redis, "redis").take_over()
    finally:
        redis.close()
        redis_server.ask("ACL", "DELUSER", "ember")
