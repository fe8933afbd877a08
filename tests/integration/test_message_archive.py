"""The broker and its commands with a message store on a server; no Spark, the sink is used as the archive would."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.contracts.message_stores import NOON_MS, SETTINGS, SINK_S, message, table
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.mqtt_client import MqttClient, run
from tests.support.sql_server import SqlServer

from embermq.adapters.sqlite.log_readers import SqliteLogReaders
from embermq.pipeline.places import Places
from embermq.pipeline.sinks.message_server import MessageServer
from embermq.pipeline.sinks.sql_server import sql_server as server_of
from embermq.pipeline.sources.log_file import LogFile, embedded_log_id

COMMAND_S = 60


def sink_of(url: str, data_dir: Path) -> MessageServer:
    places = Places(data_dir)
    sink = MessageServer(
        server_of(url, SETTINGS, SINK_S), places.archive, partial(embedded_log_id, places.broker)
    )
    sink.open()
    return sink


@pytest.fixture(params=["postgres", pytest.param("mariadb", marks=pytest.mark.in_faults)])
def sql_server(request: pytest.FixtureRequest) -> SqlServer:
    """Both answer alike: `contracts/test_message_store.py`."""
    server: SqlServer = request.getfixturevalue(request.param)
    return server


def typed(*words: str | Path, url: str, code: int = 0) -> str:
    """What a command prints, on either stream; the URL is in its environment."""
    done = run_program(*words, environment={"EMBERMQ_STORES__STATIC": url}, timeout_s=COMMAND_S)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def publish_one(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        client = MqttClient("pump")
        await client.connect(broker.port)
        await client.publish("t", b"x", qos=1)
        client.close()
        await client.ended

    run(scenario())


def newest_offset(data_dir: Path) -> int:
    with closing(LogFile(Places(data_dir).log)) as log:
        end = log.end()
    assert end is not None
    return end - 1


@pytest.mark.promise("pipeline-11")
def test_messages_are_shown_and_pruned_where_they_are(
    sql_url: str, sql_server: SqlServer, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    assert "not the data directory of a broker" in typed(
        *("messages", "show", "--topic", "t", "--data-dir", directory), url=sql_url, code=1
    )
    with BrokerProcess(directory, settings={"stores.static": sql_url}) as broker:
        broker.stop()
    rows = [message(n, topic="T" if n % 2 else "t", accepted_ms=NOON_MS + n) for n in range(1_500)]
    with closing(sink_of(sql_url, directory)) as sink:
        sink.write_table(table(rows))
    words = ("--topic", "t", "--after", "9", "--limit", "700", "--json", "--data-dir", directory)
    shown = [json.loads(line) for line in typed("messages", "show", *words, url=sql_url).splitlines()]
    assert [one["offset"] for one in shown] == list(range(10, 1_410, 2))
    assert {one["topic"] for one in shown} == {"t"} and shown[0]["payload"] == "10"

    prune = ("messages", "prune", "--older-than-hours", "0", "--data-dir", directory)
    assert ": 1,500 messages; nothing was deleted" in typed(*prune, "--dry-run", url=sql_url)
    assert json.loads(typed(*prune, "--json", url=sql_url)) == {"older": 1_500, "deleted": 1_500}
    none = typed("messages", "show", "--topic", "t", "--data-dir", directory, url=sql_url)
    assert none.startswith("the archive has no message of topic t;")

    sql_server.kill()
    told = typed("messages", "show", "--topic", "t", "--data-dir", directory, url=sql_url, code=1)
    assert f"@127.0.0.1:{sql_server.port}/" in told and "Traceback" not in told
    assert sql_server.password not in told and "%2F" not in told


@pytest.mark.promise("pipeline-2", "pipeline-5")
def test_no_record_gets_an_offset_that_the_server_has_confirmed(sql_url: str, tmp_path: Path) -> None:
    """As when a data directory is put back to an earlier day, and the server is not."""
    directory = tmp_path / "data"
    settings = {"stores.static": sql_url}
    with BrokerProcess(directory, settings=settings) as broker:
        publish_one(broker)
        broker.stop()
        assert newest_offset(directory) == 0
        with closing(sink_of(sql_url, directory)) as sink:
            sink.begin_at(2**31 + 1)
        Places(directory).archive.unlink()
        broker.restart()
        publish_one(broker)
        broker.stop()
        assert newest_offset(directory) == 2**31 + 1

    other = tmp_path / "other"
    with BrokerProcess(other, settings=settings) as broker:
        publish_one(broker)
        broker.stop()
        assert newest_offset(other) == 0, "another log has offsets of its own"


@pytest.mark.promise("pipeline-5")
def test_what_a_server_confirmed_counts_no_more_when_the_store_moves_back(
    sql_url: str, tmp_path: Path
) -> None:
    """Else the log would let go of what messages.db has not had."""
    directory = tmp_path / "data"
    broker = BrokerProcess(directory, settings={"stores.static": sql_url})
    with broker:
        broker.stop()
        with closing(sink_of(sql_url, directory)) as sink:
            sink.begin_at(7)
        broker.restart()
        assert [one.next_offset for one in SqliteLogReaders(directory).positions()] == [7]
        broker.stop()
        broker.settings["stores.static"] = "sqlite"
        broker.restart()
        assert SqliteLogReaders(directory).positions() == []
