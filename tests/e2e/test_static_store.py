"""Accounts on an SQL server, as an operator meets them: made by the command, used by brokers, the server going away."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.measuring import judge
from tests.support.mqtt_client import MqttClient, run
from tests.support.sql_server import SqlServer
from tests.support.waiting import wait_for, wait_until

from embermq.database.database_url import parse_url
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
SUCCESS = ReasonCode.SUCCESS
WRONG = ReasonCode.BAD_USER_NAME_OR_PASSWORD
AWAY = {V311: 3, V5: ReasonCode.SERVER_UNAVAILABLE}
QUICK = {"sql.timeout_s": 3.0}
SOON_S = 60.0


@pytest.fixture(params=["postgres", pytest.param("mariadb", marks=pytest.mark.in_faults)])
def sql_server(request: pytest.FixtureRequest) -> SqlServer:
    """What both servers have in common; that they have is for contracts and `integration/test_sql_database.py`."""
    server: SqlServer = request.getfixturevalue(request.param)
    return server


def embermq(*words: str | Path, stdin: str = "", code: int = 0) -> str:
    done = run_program(*words, stdin=stdin)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stderr if code else done.stdout


def on(url: str) -> tuple[str, str]:
    return "--set", f"stores.static={url}"


def add(url: str, *names: str) -> None:
    for name in names:
        embermq("users", "add", name, *on(url), stdin="secret\n")


@pytest.fixture
def broker(sql_server: SqlServer, sql_url: str, tmp_path: Path) -> Iterator[BrokerProcess]:
    """Whatever happens, the server's password is nowhere in what it prints."""
    with BrokerProcess(tmp_path / "data", settings=QUICK | {"stores.static": sql_url}) as running:
        yield running
        assert running.is_running
        assert sql_server.password not in running.output()
        assert sql_url not in running.output()
        assert "Traceback" not in running.output()


async def enter(port: int, password: str = "secret", *, version: ProtocolVersion = V5) -> int:
    client = MqttClient("guest", version=version)
    answer = await client.connect(port, username="ann", password=password.encode())
    client.abort()
    await client.ended
    return answer.reason_code


async def enters(port: int) -> None:
    """Wait until it does."""
    end_s = time.monotonic() + SOON_S
    while await enter(port) != SUCCESS:
        assert time.monotonic() < end_s, "the server is back, and nobody enters"


@pytest.mark.parametrize("version", [V311, V5])
def test_the_server_is_killed_and_comes_back(
    broker: BrokerProcess, sql_server: SqlServer, sql_url: str, version: ProtocolVersion
) -> None:
    """Who is there stays; who comes is told that the server is unavailable; later all is as before, and an account that
    was disabled then ends its connection."""
    add(sql_url, "ann")

    async def scenario() -> None:
        staying = MqttClient("staying", version=version)
        assert (await staying.connect(broker.port, username="ann", password=b"secret")).reason_code == SUCCESS
        assert await enter(broker.port, "wrong", version=version) == (WRONG if version is V5 else 4)
        sql_server.kill()
        assert await enter(broker.port, version=version) == AWAY[version]
        await staying.publish("t", b"x", qos=1)
        sql_server.start()
        await enters(broker.port)
        assert staying.is_open
        embermq("users", "disable", "ann", *on(sql_url))
        await wait_for(
            lambda: not staying.is_open, SOON_S, "the account that was disabled ends its connection"
        )
        assert await enter(broker.port, version=version) != SUCCESS

    run(scenario())


def test_a_restarted_server_costs_logins_of_a_moment(
    sql_server: SqlServer, sql_url: str, tmp_path: Path
) -> None:
    """What the broker's own reading of changes met while the server was down is over with the next try."""
    add(sql_url, "ann")
    settings = QUICK | {"stores.static": sql_url}

    async def scenario(port: int) -> None:
        assert await enter(port) == SUCCESS
        sql_server.restart()
        end_s = time.monotonic() + SOON_S
        while (code := await enter(port)) != SUCCESS:
            assert code == ReasonCode.SERVER_UNAVAILABLE and time.monotonic() < end_s

    with BrokerProcess(tmp_path / "data", settings=settings, installed=True) as broker:
        run(scenario(broker.port))


@pytest.mark.perf
def test_a_server_that_does_not_answer_holds_nobody_else_up(
    broker: BrokerProcess, sql_server: SqlServer, sql_url: str
) -> None:
    """The first logins wait as long as the settings allow, later ones hear at once; messages flow meanwhile."""
    add(sql_url, "ann")

    async def scenario() -> None:
        there = MqttClient("there")
        assert (await there.connect(broker.port, username="ann", password=b"secret")).reason_code == SUCCESS
        assert await enter(broker.port) == SUCCESS
        sql_server.pause()
        waiting = [MqttClient(f"waiting-{number}") for number in range(10)]
        answers = [client.connect(broker.port, username="ann", password=b"secret") for client in waiting]
        gathered = asyncio.gather(*answers)
        longest_s = 0.0
        while not gathered.done():
            began_s = time.monotonic()
            await there.publish("t", b"x", qos=1)
            longest_s = max(longest_s, time.monotonic() - began_s)
            await asyncio.sleep(0.01)
        assert {answer.reason_code for answer in gathered.result()} == {AWAY[V5]}
        judge(longest_s, 0.5, "a server that does not answer, s of the longest publish of another")
        began_s = time.monotonic()
        assert await enter(broker.port) == AWAY[V5]
        judge(time.monotonic() - began_s, 5.0, "a later login while a server does not answer, s")
        sql_server.resume()
        await enters(broker.port)

    run(scenario())


def _is_ready(broker: BrokerProcess) -> bool:
    return "\nready\n" in broker.output()


def test_brokers_that_start_at_once_share_new_tables(sql_url: str, tmp_path: Path) -> None:
    brokers = [
        BrokerProcess(tmp_path / name, settings={"stores.static": sql_url, "log.durability": "os"})
        for name in "abc"
    ]
    try:
        for one in brokers:
            one.launch()
        for one in brokers:
            wait_until(partial(_is_ready, one), 30, "ready", poll_s=0.05)
        add(sql_url, "ann")

        async def scenario() -> None:
            for one in brokers:
                assert await enter(one.port) == SUCCESS
                assert await enter(one.port, "wrong") == WRONG

        run(scenario())
    finally:
        for one in brokers:
            one.close()


def test_a_server_that_is_away_at_the_start_is_told(sql_server: SqlServer, tmp_path: Path) -> None:
    url = sql_server.database()
    sql_server.stop()
    told = embermq("run", "--no-pipeline", "--data-dir", tmp_path, *on(url), code=1)
    assert told.startswith("embermq: stores.static: cannot read the schema version in ")
    assert "127.0.0.1" in told and len(told.splitlines()) == 1
    assert sql_server.password not in told
    sql_server.start()
    sql_server.drop(url)


def test_a_broker_without_the_right_to_make_tables_uses_those_that_are_there(
    postgres: SqlServer, tmp_path: Path
) -> None:
    url = postgres.database()
    name = url.rpartition("/")[2]
    postgres.execute(f"CREATE USER {name} PASSWORD 'quiet'")
    poor = parse_url(url)
    words = on(f"postgresql://{name}:quiet@{poor.host}:{poor.port}/{name}")
    postgres.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", database=name)
    assert "cannot make the tables" in embermq("users", "list", *words, code=1)
    embermq("users", "list", *on(url))
    postgres.execute(
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}", database=name
    )
    embermq("users", "add", "ann", "--data-dir", tmp_path, *words, stdin="secret\n")
    assert "ann" in embermq("users", "list", *words)
    postgres.drop(url)
    postgres.execute(f"DROP USER {name}")


def test_accounts_move_to_the_server_and_back(sql_url: str, tmp_path: Path) -> None:
    here = ["--data-dir", str(tmp_path / "here")]
    embermq("users", "add", "ann", *here, stdin="secret\n")
    embermq("users", "add", "app", "--type", "application", "--scram", *here, stdin="secret\n")
    embermq("users", "disable", "app", *here)
    added = "2 users: added 2, replaced 0, kept 0\n"
    assert embermq("users", "copy", "--from", "sqlite", *here, *on(sql_url)) == added
    assert embermq("users", "list", *here) == embermq("users", "list", *on(sql_url))
    kept = embermq("users", "copy", "--from", "sqlite", *here, *on(sql_url), "--json")
    assert json.loads(kept)["kept"] == 2
    back = ["--data-dir", str(tmp_path / "back")]
    assert embermq("users", "copy", "--from", sql_url, *back) == added
    assert embermq("users", "list", *here) == embermq("users", "list", *back)
    told = embermq("users", "copy", "--from", sql_url, *on(sql_url), code=2)
    assert "nothing was copied" in told


def test_a_missing_driver_is_told_with_its_extra(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pymysql'] = None\n"
        "from embermq.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["run", "--no-pipeline", "--data-dir", str(tmp_path), *on("mysql://u:hidden@h/d")]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "needs pymysql" in done.stderr
    assert "embermq[servers]" in done.stderr
    assert "hidden" not in done.stderr
