"""An embedded broker grows onto Kafka and Redis: its clients find all that was owed to them."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.grown_broker import SETTINGS, Clients
from tests.support.kafka_dispatcher import KafkaDispatcher
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import run
from tests.support.played_pipeline import PlayedPipeline
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.sql_server import SqlServer

from embermq.adapters.sqlite.message_store import SqliteMessageStore
from embermq.pipeline.sinks.sink_file import SinkFile

TIMEOUT_S = 300
ARCHIVED = 3
"""Keys of another slot, and of another program."""


def archives(data_dir: Path, *, lacks: int) -> None:
    """What the pipeline's archive would write there; it has not seen the last records."""
    with closing(sqlite3.connect(data_dir / "broker.db")) as broker:
        (end,) = broker.execute("SELECT value FROM meta WHERE name = 'log_end'").fetchone()
    schema = ("embermq.formats", "messages.sql")
    with (
        closing(SinkFile(data_dir / "messages.db", "archive", schema)) as file,
        file.transaction() as connection,
    ):
        file.move_to(end - lacks)
        for offset in range(ARCHIVED):
            row = (offset, "old/topic", 1, 1, 0, "somebody", 5, b"%d" % offset)
            connection.execute(
                'INSERT OR IGNORE INTO message ("offset", topic, accepted_ms, qos, retain, publisher, version, payload)'
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )


def imports(source: Path, broker: BrokerProcess, *words: str) -> subprocess.CompletedProcess[str]:
    """`embermq import-embedded` into the servers of a broker that does not run."""
    given = [word for name, value in broker.settings.items() for word in ("--set", f"{name}={value}")]
    return run_program(
        "import-embedded", source, "--data-dir", broker.data_dir, *given, *words, timeout_s=TIMEOUT_S
    )


@pytest.mark.promise("cluster-24")
def test_clients_of_every_kind_go_on_where_they_were(
    kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    """What devices, applications, groups and queues were owed by an embedded broker, the one on servers gives them."""
    clients = Clients()
    source, servers = tmp_path / "embedded", on_servers(kafka, redis_server)
    with BrokerProcess(source, settings=SETTINGS) as embedded:
        added = run_program("users", "add", "ann", "--generate", "--data-dir", source)
        assert added.returncode == 0, added.stderr
        with PlayedPipeline(source):
            run(clients.before(embedded))
        run(clients.left(embedded))
        busy = imports(source, BrokerProcess(tmp_path / "grown", settings=servers | SETTINGS))
        assert busy.returncode == 1
        assert "is in use by another broker" in busy.stderr
        run(clients.killed(embedded))

    grown = BrokerProcess(tmp_path / "grown", settings=servers | SETTINGS)
    tried = imports(source, grown, "--dry-run", "--json")
    assert tried.returncode == 0, tried.stderr
    assert redis_server.ask("DBSIZE") == 0
    archives(source, lacks=2)
    late = imports(source, grown)
    assert late.returncode == 1
    assert "lacks 2 records of the log" in late.stderr
    archives(source, lacks=0)
    done = imports(source, grown, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    before = json.loads(tried.stdout)["counts"]
    assert found["counts"] == before | {"archived messages": ARCHIVED} == found["there"]
    with closing(SqliteMessageStore(grown.data_dir / "messages.db", is_kafka=True)) as store:
        assert [one.message.payload for one in store.range("old/topic", 0, 10)] == [b"1", b"2"]
    assert all(count for kind, count in found["counts"].items() if kind not in ("parked messages", "replays"))

    again = imports(source, grown)
    assert again.returncode == 1
    assert "was imported into" in again.stderr
    old = BrokerProcess(source, settings=SETTINGS)
    old.launch()
    assert old.wait() == 1
    assert "the message log of" in old.output()
    old.close()
    with grown, KafkaDispatcher(kafka, str(servers["kafka.prefix"])):
        run(clients.after(grown))


@pytest.mark.in_faults
@pytest.mark.promise("cluster-24")
def test_they_go_on_in_a_redis_cluster_with_accounts_in_sql(
    kafka: KafkaServer, redis_cluster: RedisCluster, postgres: SqlServer, tmp_path: Path
) -> None:
    clients, url = Clients(), postgres.database()
    source = tmp_path / "embedded"
    with BrokerProcess(source, settings=SETTINGS) as embedded:
        added = run_program("users", "add", "ann", "--generate", "--data-dir", source)
        assert added.returncode == 0, added.stderr
        with PlayedPipeline(source):
            run(clients.before(embedded))
        run(clients.left(embedded))
        run(clients.killed(embedded))
    servers = on_servers(kafka, redis_cluster) | {"stores.static": url}
    grown = BrokerProcess(tmp_path / "grown", settings=servers | SETTINGS)
    done = imports(source, grown, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["counts"] == found["there"]
    assert found["there"]["accounts"] == 1
    listed = run_program("users", "list", "--set", f"stores.static={url}")
    assert "ann" in listed.stdout, listed.stderr
    with grown, KafkaDispatcher(kafka, str(servers["kafka.prefix"])):
        run(clients.after(grown))
    postgres.drop(url)


@pytest.mark.promise("cluster-24")
def test_what_cannot_be_imported_is_refused_by_name_and_nothing_is_written(
    kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    source, servers = tmp_path / "embedded", on_servers(kafka, redis_server)
    grown = BrokerProcess(tmp_path / "grown", settings=servers | SETTINGS)

    def refused(code: int, text: str, *words: str, given: Path = source, into: BrokerProcess = grown) -> None:
        done = imports(given, into, *words)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert text in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr

    with BrokerProcess(source, settings=SETTINGS):
        pass
    refused(1, "is not the data directory of an embedded broker", given=tmp_path)
    refused(2, "name the Kafka and the Redis", into=BrokerProcess(tmp_path / "grown", settings=SETTINGS))
    refused(2, "is the one that is imported", into=BrokerProcess(source, settings=servers | SETTINGS))
    refused(2, "--leave dust: one of archive, lake, rules", "--leave", "dust")
    (source / "lake").mkdir()
    refused(1, "has what is not carried over: lake")
    assert redis_server.ask("DBSIZE") == 0

    redis_server.ask("SET", "embermq:import", '{"log":1,"fingerprint":0}')
    grown.launch()
    assert grown.wait() == 1
    assert "an import of an embedded broker into it has not ended" in grown.output()
    grown.close()
    redis_server.ask("DEL", "embermq:import")
    redis_server.ask("SET", "s:ol:{somebody}", "else")
    refused(1, "it holds data that EmberMQ cannot place")
    assert redis_server.ask("DBSIZE") == 1
