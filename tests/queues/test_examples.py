"""The programs of examples/queues, as a person runs them."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess

from embermq_client import Message, SettleRefused

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "queues"
END_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("examples")) as running:
        yield running


def said(broker: BrokerProcess, name: str) -> list[str]:
    """What the program prints, line by line. It has to end well, and without a word of complaint."""
    found = [str(ROOT / "client" / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            EXAMPLES / f"{name}.py",
            "--host",
            "127.0.0.1",
            "--port",
            str(broker.port),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(found)},
        capture_output=True,
        text=True,
        timeout=END_S,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


@pytest.mark.promise("queues-37", "queues-14", "queues-23")
def test_a_task_queue(broker: BrokerProcess) -> None:
    """Run again at once it does the same: its ids are those of one run."""
    said(broker, "task_queue")
    lines = said(broker, "task_queue")
    assert lines[-1] == "12 of 12 tasks are finished"
    assert len([line for line in lines if "image-3 again later" in line]) == 1
    assert len([line for line in lines if "image-5 never" in line]) == 1
    assert len([line for line in lines if "is small now" in line]) == 11


@pytest.mark.promise("queues-37")
@pytest.mark.parametrize("name", ["task_queue", "user_events"])
def test_a_worker_that_fails_ends_the_program(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It does not wait for ever for what nobody does any more."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(example, "QUEUE", f"examples/failing-{name}")

    async def refused(message: Message) -> None:
        raise SettleRefused("$ack", 0x87, "not yours")

    monkeypatch.setattr(Message, "ack", refused)

    async def scenario() -> None:
        async with asyncio.timeout(END_S):
            await example.main("127.0.0.1", broker.port)

    with pytest.raises(ExceptionGroup) as found:
        asyncio.run(scenario())
    assert found.group_contains(SettleRefused)


@pytest.mark.promise("queues-37", "queues-30")
def test_ordered_user_events(broker: BrokerProcess) -> None:
    lines = said(broker, "user_events")
    assert [line.partition(":")[2].partition(":")[0].strip() for line in lines[-3:]] == ["in order"] * 3
    failed = next(place for place, line in enumerate(lines) if "bank does not answer" in line)
    again = next(place for place, line in enumerate(lines) if line.endswith(": ann added-card"))
    assert failed < again and not [line for line in lines[failed:again] if ": ann bought" in line]


@pytest.mark.promise("queues-37")
def test_request_and_response(broker: BrokerProcess) -> None:
    lines = said(broker, "request_response")
    answers = [line.partition(",")[0] for line in lines[:8]]
    assert answers == [f"{number} squared is {number * number}" for number in range(8)]
    assert lines[8] == "nobody answered: $queue/examples/nobody-serves-this: no answer in 0.5 s"


@pytest.mark.promise("queues-37", "queues-34")
def test_dead_letter_monitoring(broker: BrokerProcess) -> None:
    lines = said(broker, "dead_letters")
    assert lines[-1] == "1 max_retries, 1 rejected"
    assert "after 11 deliveries, last error 'no such customer'" in "\n".join(lines)


@pytest.mark.promise("queues-37")
def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        "task_queue",
        "user_events",
        "request_response",
        "dead_letters",
    }
