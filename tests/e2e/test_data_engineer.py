"""What docs/pipeline.md shows to whoever analyses data, run beside a broker with its pipeline: the programs in Python
for the lake and the log."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.typed_commands import FENCED, ROOT
from tests.support.waiting import wait_until

from embermq.mqtt.wire.packets import Subscription

PAGE = ROOT / "docs" / "pipeline.md"
WAIT_S = 1_500.0
PROGRAM_S = 900
TOPICS = ("orders/17", "sensors/1", "$queue/work")
EACH = 20
SPARK = "spark.read.format"
SOURCE = "EmberMQSource"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With messages that archive, lake and traffic have, in a folder where `embermq-data` is its data directory."""
    settings = {"clients.application_ids": "billing", "pipeline.nice": 0}
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


def run_python(program: str, place: Path) -> str:
    """What it prints; raises AssertionError when it fails."""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.in_faults
@pytest.mark.timeout(4_000)
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
    told = run_python(textwrap.dedent(extension) + shown, place)
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
    told = run_python(notebook + counted + textwrap.dedent(rest), place)
    assert re.search(rf"\| *orders *\| *{EACH}\|", told)
    assert f"('orders', {EACH})" in told and f"('sensors', {EACH})" in told


def _shows(program: str, begins: tuple[str, ...]) -> str:
    """With what a notebook would show printed."""
    return "\n".join(
        f"print({line}{'.to_string()' if 'pandas' in line else ''})" if line.startswith(begins) else line
        for line in program.splitlines()
    )
