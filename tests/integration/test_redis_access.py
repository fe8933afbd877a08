"""Who is let in by a Redis, what the link says of one that is not the right one, and that it shows no password."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.certificates import Authority
from tests.support.redis_asking import Asking, linked, on_the_loop
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for

from embermq.adapters.redis.address import RedisSettings, parse_address
from embermq.adapters.redis.link import RedisLink

PASSWORD = "correct-horse/battery@staple"
QUOTED = "correct-horse%2Fbattery%40staple"
WRONG = "wrong-horse"
RIGHTS = "~* +@all -@dangerous +info +client|kill +client|list"
QUICK = RedisSettings()


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that wants a password."""
    with RedisServer(tmp_path_factory.mktemp("locked"), password=PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def veiled(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[RedisServer]:
    """A server that speaks TLS."""
    folder = tmp_path_factory.mktemp("veiled")
    with RedisServer(folder, certificate=authority.server(), authority=authority.certificate) as server:
        yield server


async def answered(url: str, settings: RedisSettings = QUICK) -> None:
    """Asks, and gets all answers."""
    async with linked(url, settings) as link:
        asking = Asking(link, 3)
        asking.append(each=3)
        await asking.all_answered()
        assert asking.in_order and not link.failing


async def complaint(url: str, settings: RedisSettings = QUICK) -> str:
    """What a link says that is not let in; it goes on trying."""
    async with linked(url, settings) as link:
        asking = Asking(link, 1)
        asking.append()
        await wait_for(lambda: link.failing)
        assert asking.waiting
        return link.failing.partition(": ")[2]


@on_the_loop
async def test_a_password(locked: RedisServer) -> None:
    await answered(f"redis://:{QUOTED}@127.0.0.1:{locked.port}")
    await answered(f"redis://default:{QUOTED}@127.0.0.1:{locked.port}/2")


@on_the_loop
async def test_a_password_that_is_wrong_or_missing(
    locked: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    place = f"127.0.0.1:{locked.port}"
    assert await complaint(f"redis://:{WRONG}@{place}") == "refuses the user or the password"
    assert await complaint(f"redis://nobody:{WRONG}@{place}") == "refuses the user or the password"
    assert await complaint(f"redis://{place}") == "wants a password"
    assert WRONG not in caplog.text


@on_the_loop
async def test_a_password_that_nobody_asked_for(redis_server: RedisServer) -> None:
    url = f"redis://:{WRONG}@127.0.0.1:{redis_server.port}"
    assert await complaint(url) == "refuses the password (does it have one?)"


@on_the_loop
async def test_a_password_that_is_put_right_at_the_server(locked: RedisServer) -> None:
    async with linked(f"redis://:{WRONG}@127.0.0.1:{locked.port}", QUICK) as link:
        asking = Asking(link, 3)
        asking.append(each=3)
        await wait_for(lambda: link.failing)
        locked.ask("ACL", "SETUSER", "default", f">{WRONG}")
        await asking.all_answered()
        assert asking.in_order and not link.failing
        locked.ask("ACL", "SETUSER", "default", f"<{WRONG}")


def test_the_manual_names_the_rights() -> None:
    assert f"`{RIGHTS}`" in (Path(__file__).parents[2] / "docs" / "stores.md").read_text()


@on_the_loop
async def test_a_user_with_the_rights_that_the_manual_names(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.ask("ACL", "SETUSER", "ember", "on", ">secret-1", *RIGHTS.split())
    url = f"redis://ember:secret-1@127.0.0.1:{redis_server.port}"
    async with linked(url, RedisSettings(wait_replicas=0, command_timeout_s=0.2)) as link:
        asking = Asking(link, 3)
        asking.append()
        await asking.all_answered()
        redis_server.pause()
        asking.append()
        await wait_for(lambda: link.failing)
        redis_server.resume()
        await asking.all_answered()
        assert link.statistics().connections >= 2
    asking.assert_done(asking.lists(redis_server))
    assert "cannot be ended" not in caplog.text
    redis_server.ask("ACL", "DELUSER", "ember")


@on_the_loop
async def test_a_user_that_may_not_do_everything(redis_server: RedisServer) -> None:
    redis_server.ask("ACL", "SETUSER", "ember", "on", ">secret-1", "~s:*", "+@all", "-@admin", "-rpush")
    async with linked(f"redis://ember:secret-1@127.0.0.1:{redis_server.port}", QUICK) as link:
        answers: list[object] = []
        link.command("s:a", ("SET", "s:a", "1"), answers.append)
        await wait_for(lambda: answers == [b"OK"])
        link.command("s:a", ("RPUSH", "s:b", "1"), answers.append)
        link.command("s:a", ("SET", "s:a", "2"), answers.append)
        await wait_for(lambda: link.failing)
        assert link.failing.startswith("NOPERM")
        assert "secret-1" not in link.failing
        redis_server.ask("ACL", "SETUSER", "ember", "+rpush")
        await wait_for(lambda: len(answers) == 3)
        assert answers == [b"OK", 1, b"OK"]
    redis_server.ask("ACL", "DELUSER", "ember")


@on_the_loop
async def test_tls(veiled: RedisServer, authority: Authority) -> None:
    url = f"{veiled.url}?ca_file={authority.certificate}"
    await answered(url)
    await answered(url.replace("127.0.0.1", "localhost"))


@on_the_loop
async def test_tls_with_a_certificate_of_our_own(tmp_path: Path, authority: Authority) -> None:
    settings = {"tls-auth-clients": "no"}
    with RedisServer(
        tmp_path, certificate=authority.server(), authority=authority.certificate, settings=settings
    ) as server:
        server.ask("CONFIG", "SET", "tls-auth-clients", "yes")
        url = f"{server.url}?ca_file={authority.certificate}"
        assert await complaint(url)
        await answered(f"{url}&cert_file={authority.client()}")


@on_the_loop
async def test_tls_with_a_server_that_cannot_be_trusted(veiled: RedisServer, tmp_path: Path) -> None:
    stranger = Authority(tmp_path).certificate
    assert "certificate is refused" in await complaint(f"{veiled.url}?ca_file={stranger}")
    assert "certificate is refused" in await complaint(veiled.url)


@on_the_loop
async def test_tls_where_there_is_none_and_the_other_way_round(
    redis_server: RedisServer, veiled: RedisServer
) -> None:
    no_tls = redis_server.url.replace("redis:", "rediss:")
    assert await complaint(no_tls) == "no connection within 2 s (does it speak TLS?)"
    tls = veiled.url.replace("rediss:", "redis:")
    assert await complaint(tls) == "ends the connection at once (does it want TLS? then write rediss)"


def test_files_of_certificates_that_cannot_be_used(tmp_path: Path, authority: Authority) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    for option, told in (
        ("ca_file=/no/where", r"stores\.session: ca_file '/no/where': No such file or directory"),
        (f"ca_file={empty}", r"stores\.session: ca_file .*: no certificates"),
        (f"cert_file={authority.certificate}", r"stores\.session: cert_file .*: no certificate and key"),
    ):
        with pytest.raises(ValueError, match=told):
            RedisLink(parse_address(f"rediss://here?{option}"), QUICK)


@on_the_loop
async def test_a_server_of_another_kind(redis_server: RedisServer, redis_cluster: RedisCluster) -> None:
    node = f"127.0.0.1:{redis_cluster.nodes[0].port}"
    assert await complaint(f"redis://{node}") == (
        "is a node of a Redis Cluster; write redis+cluster:// in stores.session"
    )
    assert await complaint(f"redis+cluster://127.0.0.1:{redis_server.port}") == (
        "is no node of a Redis Cluster; write redis:// in stores.session"
    )


@on_the_loop
async def test_a_replica_is_not_written_to(redis_server: RedisServer, tmp_path: Path) -> None:
    with RedisServer(
        tmp_path, settings={"replicaof": f"127.0.0.1 {redis_server.port}", "replica-read-only": "yes"}
    ) as replica:
        async with linked(replica.url, QUICK) as link:
            asking = Asking(link, 3)
            asking.append(each=3)
            await wait_for(lambda: link.failing)
            assert link.failing.endswith("is a replica, which stores nothing by itself")
            replica.ask("REPLICAOF", "NO", "ONE")
            await asking.all_answered()
        asking.assert_done(asking.lists(replica))


@on_the_loop
async def test_a_master_that_becomes_a_replica_is_waited_for(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with RedisServer(tmp_path) as other:
        async with linked(other.url, QUICK) as link:
            asking = Asking(link, 3)
            asking.append()
            await asking.all_answered()
            other.ask("REPLICAOF", "127.0.0.1", redis_server.port)
            asking.append(each=2)
            await wait_for(lambda: link.failing)
            other.ask("REPLICAOF", "NO", "ONE")
            await asking.all_answered()
            assert asking.in_order


@on_the_loop
async def test_writes_count_when_the_replica_has_them(redis_server: RedisServer, tmp_path: Path) -> None:
    settings = RedisSettings(wait_replicas=1)
    async with linked(redis_server.url, settings) as link:
        asking = Asking(link, 5)
        asking.append(each=5)
        await wait_for(lambda: link.failing.endswith("0 of 1 replicas have what was written"))
        await wait_for(lambda: all(map(len, asking.lists(redis_server).values())))
        assert asking.waiting == 25
        with RedisServer(tmp_path, settings={"replicaof": f"127.0.0.1 {redis_server.port}"}) as replica:
            await asking.all_answered()
            assert not link.failing
            asking.assert_done(asking.lists(replica))


@on_the_loop
async def test_a_server_that_forgets_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(
        tmp_path, appendonly=False, settings={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    ) as server:
        async with linked(server.url, QUICK) as link:
            for connection in (1, 2):
                asking = Asking(link, 1)
                asking.append()
                await asking.all_answered()
                assert link.statistics().connections == connection
                server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                await wait_for(lambda: link.failing)
    told = [record.message.partition(": ")[2] for record in caplog.records]
    assert told.count("maxmemory-policy is allkeys-lru: a full server would throw stored messages away") == 1
    assert told.count("appendonly is off: what is stored there is lost when it ends") == 1


@on_the_loop
async def test_a_server_as_it_should_be_gets_no_advice(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    await answered(redis_server.url)
    assert not caplog.records
