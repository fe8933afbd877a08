"""What docs/pipeline.md shows to whoever analyses data, typed beside a broker with its pipeline: the commands, and the
programs in Python for the lake and the log."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.broker_process import EMBERMQ, BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.typed_commands import FENCED, ROOT, blocks, joined
from tests.support.waiting import wait_until

from embermq.mqtt.wire.packets import Subscription

PAGE = ROOT / "docs" / "pipeline.md"
WAIT_S = 300.0
TYPED_S = 400
TOPICS = ("orders/17", "sensors/1", "$queue/work")
EACH = 20
HERE = {
    "2026-11-23T08:00": timedelta(hours=-1),
    "2026-11-23T09:00": timedelta(hours=1),
    "2026-11-01": timedelta(days=-1),
    "2026-11-08": timedelta(days=2),
    "2026-12-01": timedelta(days=2),
}
"""Times of the page, and when they are here, from now on."""
SPARK = "spark.read.format"
SOURCE = "EmberMQSource"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With messages that archive, lake and traffic have, in a folder where `embermq-data` is its data directory."""
    settings = {"clients.application_ids": "billing"}
    place = tmp_path_factory.mktemp("engineer") / "embermq-data"
    with BrokerProcess(place, pipeline=True, settings=settings, installed=True) as running:
        run(_fill(running))
        wait_until(lambda: _has_all(running), WAIT_S, "all queries have read all")
        yield running


async def _fill(broker: BrokerProcess) -> None:
    billing = MqttClient("billing")
    await billing.connect(broker.port, expiry_s=3_600)
    await billing.subscribe(Subscription("orders/#", 1))
    billing.close()
    await billing.ended
    publisher = MqttClient("publisher")
    await publisher.connect(broker.port)
    await publisher.subscribe(Subscription("$queue/work", 1))
    for number in range(EACH):
        for topic in TOPICS:
            await publisher.publish(topic, b'{"number": %d}' % number, qos=1)
    publisher.close()
    await publisher.ended


def _has_all(broker: BrokerProcess) -> bool:
    status = httpx.get(f"http://127.0.0.1:{broker.http_port}/api/v1/pipeline", timeout=30).json()
    queries: list[dict[str, Any]] = status["queries"]
    return len(queries) == 4 and all(
        query["state"] == "running" and query["position"] >= EACH * len(TOPICS) for query in queries
    )


def commands() -> list[str]:
    """Those of the page that are for whoever looks at data, filled in for this place."""
    found = []
    for block in blocks(PAGE):
        for line in joined(block.text):
            if re.match(r"embermq (messages|pipeline (replay|audit|report|compact))|sqlite3", line):
                command = line.partition("  #")[0].strip()
                for written, ahead in HERE.items():
                    moment = datetime.now(UTC) + ahead
                    there = moment.strftime("%Y-%m-%dT%H:%M" if "T" in written else "%Y-%m-%d")
                    command = command.replace(written, there)
                found.append(
                    command.replace("--from 120000", "--from 0")
                    .replace("--after 120000", "--after -1")
                    .replace("--key audit.pub", "--key embermq-data/audit.pub")
                )
    return found


def typed(command: str | list[str], place: Path) -> str:
    """What it prints; raises AssertionError when it fails."""
    environment = {**os.environ, "PATH": f"{EMBERMQ.parent}:{os.environ['PATH']}"}
    words = shlex.split(command) if isinstance(command, str) else command
    done = subprocess.run(
        words, cwd=place, env=environment, capture_output=True, text=True, timeout=TYPED_S, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def told_by(told: dict[str, str], *words: str) -> str:
    """Of the one command with these words."""
    (found,) = (text for command, text in told.items() if all(word in command for word in words))
    return found


@pytest.mark.in_faults
@pytest.mark.timeout(1_500)
def test_the_programs_of_the_page_read_lake_and_log(broker: BrokerProcess) -> None:
    place = broker.data_dir.parent
    lake, notebook, source = (
        textwrap.dedent(text)
        for language, text in FENCED.findall(PAGE.read_text())
        if language == "python" and any(word in text for word in ("deltalake", SPARK, SOURCE))
    )
    extension = """
        from pathlib import Path

        import duckdb
        import duckdb_extension_delta

        (file,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
        duckdb.sql(f"LOAD '{file}'")
        """
    shown = _shows(lake, ("table.to_pandas", "pl.scan_delta", "duckdb.sql"))
    told = typed([sys.executable, "-c", textwrap.dedent(extension) + shown], place)
    assert told.count("sensors/1") == EACH
    assert re.search(rf"orders\D+{EACH}\D", told) and re.search(rf"sensors\D+{EACH}\D", told)
    jars = Path(sys.prefix) / "share" / "embermq" / "jars"
    notebook = re.sub(r"(delta-\S+?\.jar)", rf"{jars}/\1", notebook)
    counted = source.replace("messages.where(", "counts = messages.where(")
    rest = """
        query = counts.writeStream.outputMode("complete").format("memory").queryName("counts")
        query.trigger(availableNow=True).start().awaitTermination()
        print(sorted(map(tuple, spark.table("counts").collect())))
        """
    told = typed([sys.executable, "-c", notebook + counted + textwrap.dedent(rest)], place)
    assert re.search(rf"\|orders *\| *{EACH}\|", told)
    assert f"('orders', {EACH})" in told and f"('sensors', {EACH})" in told


@pytest.mark.in_faults
@pytest.mark.timeout(3_000)
def test_the_commands_of_the_page_show_and_move_what_is_there(broker: BrokerProcess) -> None:
    place = broker.data_dir.parent
    asked = commands()
    assert len(asked) >= 11
    told = {command: typed(command, place) for command in asked}
    assert told_by(told, "messages show").count("orders/17") == EACH
    assert "deleted: 0" in told_by(told, "prune", "hours 48 ").lower() or "0 messages" in told_by(
        told, "prune", "dry"
    )
    assert f"work   {EACH}" in told_by(told, "sqlite3", "queue_window")
    assert "orders/17" in told_by(told, "sqlite3", "topic FROM message")
    assert f"replayed    {EACH}" in told_by(told, "--client billing")
    assert "nothing was changed" in told_by(told, "again/{topic}")
    assert f"replayed    {EACH}" in told_by(told, "--queue work")
    assert "differences  0" in told_by(told, "audit", "week-45", "--from")
    assert "differences" in told_by(told, "--verify")
    assert (place / "november" / "report.html").stat().st_size > 1_000


def _shows(program: str, begins: tuple[str, ...]) -> str:
    """With what a notebook would show printed."""
    return "\n".join(
        f"print({line}{'.to_string()' if 'pandas' in line else ''})" if line.startswith(begins) else line
        for line in program.splitlines()
    )
