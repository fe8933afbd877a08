"""The archive on PostgreSQL and MariaDB: the driver killed, the server away, and every message there once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.message_stores import SETTINGS, Kind, MessageStores, message, table
from tests.pipeline.driver_process import START_S, DriverProcess, position
from tests.pipeline.log_writer import LogWriter
from tests.pipeline.test_processes import GONE_S, fresh_records
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.mqtt_client import MqttClient, run
from tests.support.sql_server import SqlServer
from tests.support.waiting import wait_until

from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.status import QueryStatus, read_status

BATCH = 300


@pytest.fixture
def stores(server: Kind, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStores]:
    """On the server that the test names: what differs between them is in the contract tests."""
    folder = tmp_path / "data"
    folder.mkdir()
    found = MessageStores(server, folder, request.getfixturevalue(server))
    yield found
    found.close()


@pytest.fixture
def log(stores: MessageStores) -> Iterator[LogWriter]:
    writer = LogWriter(stores.places.data_dir)
    yield writer
    writer.close()


@pytest.fixture
def drivers() -> Iterator[list[DriverProcess]]:
    started: list[DriverProcess] = []
    yield started
    for driver in started:
        driver.end()


def archive(stores: MessageStores) -> QueryStatus:
    return next(query for query in read_status(stores.places.data_dir).queries if query.name == "archive")


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2", "pipeline-3", "pipeline-5", "pipeline-11", "pipeline-13", "pipeline-16")
@pytest.mark.parametrize("server", ["postgres"])
def test_the_driver_killed_and_the_server_away(
    stores: MessageStores, log: LogWriter, drivers: list[DriverProcess]
) -> None:
    places, server = stores.places, stores.server
    assert server is not None
    settings = DriverSettings(
        queries=("dispatch", "archive"),
        max_records_per_batch=BATCH,
        bulk_trigger_ms=0,
        backoff_first_ms=100,
        backoff_max_ms=500,
        message_store=stores.url,
        sql=SETTINGS,
    )

    def is_waiting() -> bool:
        found = archive(stores)
        return found.state == "backoff" and f"@127.0.0.1:{server.port}/" in found.last_error

    log.append(fresh_records(0, 3_000))
    first = DriverProcess(places, settings)
    drivers.append(first)
    first.wait_for_position("archive", 2 * BATCH)
    os.kill(first.process.pid, signal.SIGKILL)
    wait_until(first.is_gone, GONE_S, "the JVM and the workers go with the driver", poll_s=0.05)
    assert position(places, "archive") < 3_000, "killed in the middle"
    ((stored,),) = stores.rows("SELECT next_offset FROM embermq_message_progress")
    assert position(places, "archive") <= int(str(stored)), "what the broker goes by is never ahead"

    server.kill()
    log.append(fresh_records(3_000, 3_500))
    second = DriverProcess(places, settings)
    drivers.append(second)
    second.wait_for_position("dispatch", 3_500)
    wait_until(is_waiting, START_S, "the archive waits and says for whom", poll_s=0.1)
    assert 0 < position(places, "archive") < 3_500, "its position is known without the server"
    assert read_status(places.data_dir).state == "degraded"
    server.start()
    second.wait_for_position("archive", 3_500)

    server.kill()
    log.append(fresh_records(3_500, 4_000))
    second.wait_for_position("dispatch", 4_000)
    wait_until(is_waiting, START_S, "it waits again", poll_s=0.1)
    server.start()
    second.wait_for_position("archive", 4_000)
    wait_until(lambda: read_status(places.data_dir).state == "running", START_S, "all is well", poll_s=0.1)
    assert server.password not in str(read_status(places.data_dir))
    second.process.terminate()
    assert second.process.wait(GONE_S) == 0

    for name in ("status.json", "driver.log"):
        path = places.work / name
        assert not path.exists() or server.password not in path.read_text(), name
    for topic in ("r0/x", "r1/x"):
        with stores.reader() as reader:
            found = reader.range(topic, -1, 10_000)
        expected = [(n, b"%d" % n) for n in range(4_000) if f"r{n % 2}/x" == topic]
        assert [(one.offset, one.message.payload) for one in found] == expected
    assert archive(stores).totals == {"records": 4_000, "entries": 4_000}


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-7")
@pytest.mark.parametrize("server", ["mariadb"])
def test_what_is_too_old_leaves_the_server(
    stores: MessageStores, log: LogWriter, drivers: list[DriverProcess]
) -> None:
    now_ms = time.time_ns() // 1_000_000
    log.append(fresh_records(0, 10))
    with stores.sink() as sink, stores.reader() as reader:
        hour_ms = 3_600_000
        sink.write_table(
            table([message(n, accepted_ms=now_ms - 2 * hour_ms if n < 4 else now_ms) for n in range(10)])
        )
        driver = DriverProcess(
            stores.places,
            DriverSettings(
                queries=("archive",),
                retention_hours=1,
                prune_rows_max=3,
                message_store=stores.url,
                sql=SETTINGS,
            ),
        )
        drivers.append(driver)
        wait_until(
            lambda: [one.offset for one in reader.range("t", -1, 10)] == [4, 5, 6, 7, 8, 9],
            START_S,
            "the old ones are gone",
            poll_s=0.1,
        )


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-1", "pipeline-11", "pipeline-16")
def test_the_broker_tells_its_pipeline_where_the_messages_go(
    running_postgres: SqlServer, tmp_path: Path
) -> None:
    running_postgres.heal()
    url = running_postgres.database()
    settings = {"pipeline.queries": "archive"}

    async def published(port: int) -> None:
        client = MqttClient("pump")
        await client.connect(port)
        for n in range(20):
            await client.publish("tank/7", b"%d" % n, qos=1 + n % 2)
        client.close()
        await client.ended

    environment = {"EMBERMQ_STORES__STATIC": url}
    with BrokerProcess(tmp_path / "data", pipeline=True, settings=settings, env=environment) as broker:
        run(published(broker.port))

        def payloads() -> list[str]:
            done = run_program(
                *("messages", "show", "--topic", "tank/7", "--json", "--data-dir"),
                broker.data_dir,
                environment=environment,
            )
            done.check_returncode()
            return [json.loads(line)["payload"] for line in done.stdout.splitlines()]

        wait_until(lambda: len(payloads()) == 20, START_S, "all are archived", poll_s=1)
        assert payloads() == [str(n) for n in range(20)]
        assert broker.stop() == 0
        told = broker.output() + (broker.data_dir / "pipeline" / "driver.log").read_text()
        assert running_postgres.password not in told and url not in told
    assert not (broker.data_dir / "messages.db").exists()
    running_postgres.drop(url)
