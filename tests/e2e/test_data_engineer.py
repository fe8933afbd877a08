"""What docs/pipeline.md and docs/rules.md show to whoever analyses data, run beside one broker with its pipeline: the
programs in Python for the lake and the log, and every command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
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
RULES = ROOT / "docs" / "rules.md"
WAIT_S = 1_500.0
PROGRAM_S = 900
TOPICS = ("orders/17", "sensors/1", "$queue/work")
EACH = 20
SPARK = "spark.read.format"
SOURCE = "EmberMQSource"
NO_ERROR = r"\A"
TIMES = r"2026-1[12]-\d\d(T[\d:]+)? --to 2026-1[12]-\d\d(T[\d:]+)?"
COMMANDS = {
    "embermq messages show": rf"(?s)(QoS 1  publisher  \S.*){{{EACH}}}",
    "embermq messages prune --older-than-hours 48 --dry-run": "nothing was deleted",
    "embermq messages prune": "deleted 0 messages",
    "sqlite3 -header -column embermq-data/traffic.db": r"work +\d",
    "sqlite3 embermq-data/messages.db": r"\d\|\$queue/work",
    "embermq pipeline replay": r"chosen +[1-9]\d* messages",
    "embermq pipeline audit": r"differences +0",
    "embermq pipeline audit --verify": "as it was made",
    "embermq pipeline report": r"accepted +[1-9]",
    "embermq pipeline rejected": NO_ERROR,
    "embermq pipeline rejected retry": r"rejected +0",
    "embermq pipeline fetch-jars": NO_ERROR,
    "embermq pipeline status": "running",
    "embermq rules check": "hot",
    "embermq rules list": "hot",
    "embermq rules test": "alerts/1",
    "embermq rules errors": NO_ERROR,
    "embermq rules put": NO_ERROR,
    "embermq rules delete": NO_ERROR,
    "embermq tokens create": NO_ERROR,
    "curl ": r"\A\Z",
}
"""What commands show, by how they begin, the longest that fits. They are all run while the broker runs."""
AFTERWARDS = {"embermq pipeline compact": r"files +\d", "python -c": NO_ERROR}
"""When broker and pipeline are down."""
ELSEWHERE = {
    "embermq run": "every test",
    "embermq pipeline start": "tests/pipeline/test_spark_elsewhere.py",
    "embermq pipeline submit": "tests/pipeline/test_spark_elsewhere.py",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With messages that archive, lake and traffic have, in a folder where `embermq-data` is its data directory."""
    settings = {"clients.application_ids": "billing", "pipeline.nice": 0}
    place = tmp_path_factory.mktemp("engineer") / "embermq-data"
    rules = [text for language, text in FENCED.findall(RULES.read_text()) if language == "toml"]
    config = place.parent / "ember.toml"
    config.write_text(next(text for text in rules if "[rules.hot]" in text))
    arguments = ("--config", str(config))
    with BrokerProcess(
        place, pipeline=True, settings=settings, arguments=arguments, installed=True
    ) as running:
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
            await publisher.publish(topic, b'{"number": %d, "t": 99}' % number, qos=1)
    publisher.close()
    await publisher.ended


def _has_all(broker: BrokerProcess) -> bool:
    status = httpx.get(f"http://127.0.0.1:{broker.http_port}/api/v1/pipeline", timeout=30).json()
    queries: list[dict[str, Any]] = status["queries"]
    return len(queries) == 5 and all(
        query["state"] == "running" and query["position"] >= EACH * len(TOPICS) for query in queries
    )


def run_in_environment(words: Sequence[str], place: Path) -> subprocess.CompletedProcess[str]:
    """In a shell that has activated the environment: Spark's own workers are the `python3` of its path."""
    activated = {**os.environ, "PATH": f"{EMBERMQ.parent}:{os.environ['PATH']}"}
    return subprocess.run(
        words,
        cwd=place,
        env=activated,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def run_python(program: str, place: Path) -> str:
    """What it prints; raises AssertionError when it fails."""
    done = run_in_environment([sys.executable, "-c", program], place)
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


@pytest.mark.in_faults
@pytest.mark.timeout(4_000)
def test_the_commands_of_the_pages_work(broker: BrokerProcess) -> None:
    """All of them are typed, whatever came of one: a start of Spark takes its time."""
    written = [line for page in (PAGE, RULES) for block in blocks(page) for line in joined(block.text)]
    typed = [line.partition("  #")[0].strip() for line in written]
    late = [line for line in typed if line.startswith(tuple(AFTERWARDS))]
    token, wrong = "", list[str]()
    for line in typed:
        if line in late or line.startswith(tuple(ELSEWHERE)):
            continue
        told = _typed(_filled_in(line, broker, token), broker, COMMANDS, wrong)
        token = told.strip() if line.startswith("embermq tokens") else token
    broker.stop()
    for line in late:
        _typed(line, broker, AFTERWARDS, wrong)
    assert not wrong, "\n".join(wrong)


def _filled_in(line: str, broker: BrokerProcess, token: str) -> str:
    """With times, positions and names of this place instead of those of the page."""
    now = datetime.now(UTC)
    times = f"{now - timedelta(days=1):%Y-%m-%dT%H:%M} --to {now + timedelta(days=1):%Y-%m-%dT%H:%M}"
    line = re.sub(TIMES, times, line)
    for old, new in (
        ("--after 120000 --limit 20", f"--limit {EACH}"),
        ("120000", "0"),
        ("audit.pub", "embermq-data/audit.pub"),
        ("http://127.0.0.1:8080", f"http://127.0.0.1:{broker.http_port}"),
        ("curl ", "curl -sS --fail-with-body "),
        ("rules/hot", "rules/warm"),
        ("rules put hot", "rules put warm"),
        ("rules delete hot", "rules delete warm"),
        ("$TOKEN", token),
    ):
        line = line.replace(old, new)
    return line


def _typed(line: str, broker: BrokerProcess, expected: Mapping[str, str], wrong: list[str]) -> str:
    """What it prints; `wrong` has it when that is not as expected."""
    fits = max((begin for begin in expected if line.startswith(begin)), key=len, default="")
    assert fits, f"{line}: say in COMMANDS what it shows"
    done = run_in_environment(["bash", "-c", line], broker.data_dir.parent)
    if done.returncode or not re.search(expected[fits], done.stdout + done.stderr):
        wrong.append(f"$ {line}\n{done.stdout}{done.stderr}exit code {done.returncode}")
    return done.stdout
