"""What the pipeline takes: much that waits, large records, many applications. Nobody who gets messages notices it.

How long and how much is in the environment: LOAD_S (600), BACKLOG_BYTES (1,000,000,000).
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import deltalake
import httpx
import pyarrow.compute as pc
import pytest
from tests.faults.spark_processes import driver_of, jvm_of
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for, wait_until, wait_while_it_goes_on

from embermq.mqtt.wire.packets import Packet, Publish, Subscription
from embermq.pipeline.places import Places

LOAD_S = float(os.environ.get("LOAD_S", "600"))
BACKLOG_BYTES = int(os.environ.get("BACKLOG_BYTES", "1000000000"))
RATE = 5_000
RECORD_BYTES = 20_000
APPLICATIONS, EACH = 20, 500
"""So many, and messages a second that each of them gets."""
SPARK_S = 400.0
"""Until all queries run, on a machine that has other things to do."""
UNMOVED = 10
UNMOVED_MS = 2_000
"""Deliveries count as unmoved when they take so many times as long as before at most, or less than that."""
HEAP_MB = 512
DRIVER_MB, JAVA_MB = 512, 1_200
"""Java has its heap, and its code and threads beside it."""
OWN: dict[str, object] = {"clients.application_ids": json.dumps(["app*"])}
pytestmark = [pytest.mark.in_faults, pytest.mark.timeout(9_000)]


def queries(broker: BrokerProcess) -> list[dict[str, Any]]:
    answer = httpx.get(f"http://127.0.0.1:{broker.http_port}/api/v1/pipeline", timeout=60)
    found: list[dict[str, Any]] = answer.raise_for_status().json()["queries"]
    return found


def wait_for_running(broker: BrokerProcess) -> None:
    wait_until(lambda: {one["state"] for one in queries(broker)} == {"running"}, SPARK_S, "queries run")


def left(broker: BrokerProcess) -> int:
    return sum(one["lag_messages"] for one in queries(broker))


def wait_for_all(broker: BrokerProcess) -> None:
    """However long it takes, as long as it goes on."""
    done = wait_while_it_goes_on(
        lambda: not left(broker), lambda: left(broker), "everything is done", stands_s=SPARK_S
    )
    run(done, 20 * SPARK_S)


def fan_in(broker: BrokerProcess, *words: object) -> dict[str, Any]:
    """To applications; each message once and in order. What was measured."""
    given = ["fanin", "--port", broker.port, "--persistent", "--drain", 600, "--json", *words]
    done = subprocess.run(
        [sys.executable, "-m", "embermq_bench.cli", *map(str, given)], capture_output=True, text=True
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    wrong = {name: found[name] for name in ("lost", "duplicated", "reordered", "refused", "corrupt")}
    assert not any(wrong.values()), wrong
    told = {name: found[name] for name in ("published", "published_per_s", "delivery", "acknowledgement")}
    sys.stderr.write(f"{told}\n")
    return found


class Held:
    """Files of the sinks that nobody else can write."""

    def __init__(self, places: Places) -> None:
        self._held = ExitStack()
        for path in (places.messages, places.lake_ledger, places.traffic):
            connection = self._held.enter_context(closing(sqlite3.connect(path, timeout=60)))
            connection.execute("BEGIN IMMEDIATE")

    def let_go(self) -> None:
        self._held.close()


def number(path: Path, sql: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(sql).fetchone()[0])


def check_counts(places: Places, published: int) -> None:
    """Archive, lake and traffic have each message once."""
    assert number(places.messages, "SELECT COUNT(*) FROM message") == published
    rows = deltalake.DeltaTable(str(places.lake)).to_pyarrow_table(columns=["offset"])
    assert rows.num_rows == pc.count_distinct(rows["offset"]).as_py() == published
    assert number(places.traffic, "SELECT SUM(messages) FROM traffic_window") == published


@pytest.mark.promise("pipeline-5", "pipeline-7")
def test_what_bulk_queries_have_missed_they_catch_up_with_and_deliveries_do_not_wait(tmp_path: Path) -> None:
    """Ten minutes of 5,000 messages a second while none of them can write."""
    load = ("--subscriber-id", "app-one", "--publishers", 50, "--rate", RATE)
    with BrokerProcess(tmp_path / "data", pipeline=True, settings=OWN) as broker:
        places = Places(broker.data_dir)
        wait_for_running(broker)
        held = Held(places)
        try:
            before = fan_in(broker, *load, "--warmup", 10, "--duration", LOAD_S)
            waiting = {one["name"]: one["lag_messages"] for one in queries(broker)}
        finally:
            held.let_go()
        assert all(waiting[name] > before["published"] // 2 for name in ("archive", "lake", "traffic")), (
            waiting
        )
        after = fan_in(broker, *load, "--warmup", 2, "--duration", max(20.0, LOAD_S / 10))
        wait_for_all(broker)
        check_counts(places, before["published"] + after["published"])
        p99_ms = [found["delivery"]["p99_ms"] for found in (before, after)]
        assert p99_ms[1] < max(UNMOVED * p99_ms[0], UNMOVED_MS), p99_ms


def peak_mb(pid: int) -> float:
    """The most memory that a process had at once; 0 for one that is gone."""
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return int(found[1]) / 1024 if found is not None else 0.0
    return 0.0


@pytest.mark.promise("pipeline-7")
def test_a_gigabyte_of_large_records_goes_through_half_of_that(tmp_path: Path) -> None:
    """They were published while there was no pipeline: for an application that is away, archive, lake and traffic."""
    many, name = BACKLOG_BYTES // RECORD_BYTES, "app-large"
    settings = OWN | {"pipeline.heap_mb": HEAP_MB}
    words = ("--subscriber-id", "device", "--publishers", 10, "--payload", RECORD_BYTES, "--count", many)

    async def subscribe(port: int) -> None:
        client = MqttClient(name)
        await client.connect(port, clean_start=False, expiry_s=86_400)
        await client.subscribe(Subscription("#", 1))
        client.abort()

    async def read(port: int) -> None:
        client = MqttClient(name, keeps=False)
        came: list[int] = []

        def take(packet: Packet) -> None:
            if isinstance(packet, Publish):
                came.append(len(packet.payload))

        client.on_packet = take
        await client.connect(port, clean_start=False, expiry_s=86_400)
        await wait_for(lambda: len(came) >= published, 20 * SPARK_S, "it has all")
        assert came == [RECORD_BYTES] * published
        client.abort()

    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        run(subscribe(broker.port), 60)
        published = fan_in(broker, *words, "--warmup", 0, "--duration", 900)["published"]
    with BrokerProcess(tmp_path / "data", pipeline=True, settings=settings) as broker:
        drivers, javas = [0.0], [0.0]

        def is_done() -> bool:
            drivers.extend(peak_mb(pid) for pid in driver_of(broker))
            javas.extend(peak_mb(pid) for pid in jvm_of(broker))
            return not left(broker)

        wait_for_running(broker)  # before, it is not known what is left
        run(wait_while_it_goes_on(is_done, lambda: left(broker), "all", stands_s=SPARK_S), 20 * SPARK_S)
        sys.stderr.write(f"driver and Java, MB: {max(drivers)}, {max(javas)}\n")
        assert 0 < max(drivers) < DRIVER_MB and 0 < max(javas) < JAVA_MB
        run(read(broker.port), 20 * SPARK_S)
        check_counts(Places(broker.data_dir), published)


@pytest.fixture(params=["embedded", "servers"])
def stores(request: pytest.FixtureRequest) -> dict[str, object]:
    """Settings of one log and the other."""
    found: dict[str, object] = request.getfixturevalue("servers") if request.param == "servers" else {}
    return found


@pytest.mark.promise("application-2", "application-3")
def test_twenty_applications_get_five_hundred_a_second_each(
    tmp_path: Path, stores: dict[str, object]
) -> None:
    """And the pipeline is not left behind."""
    settings = OWN | {"pipeline.queries": json.dumps(["dispatch"])} | stores
    words = ("--subscriber-id", "app", "--subscribers", APPLICATIONS, "--publishers", 20, "--rate", EACH)
    with BrokerProcess(tmp_path / "data", pipeline=True, settings=settings) as broker:
        found = fan_in(broker, *words, "--warmup", 5, "--duration", LOAD_S / 10)
        assert found["delivered"] == APPLICATIONS * found["published"]
        wait_for_all(broker)
        wait_for_running(broker)
