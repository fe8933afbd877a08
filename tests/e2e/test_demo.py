"""`make demo`: the vehicle fleet as a person runs it, with fewer vehicles and shorter chapters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "fleet" / "demo.py"
STORY_S = 600
"""Its own limits add up to less; usually it takes 45 s."""
MARK = "FLEET_DEMO_MARK"


def start(mark: str, *options: str, demo: Path = DEMO) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(demo), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Beside tests that take every core, the usual priority would have Spark give up on its workers.
        env=os.environ | {MARK: mark, "PYTHONUNBUFFERED": "1", "EMBERMQ_PIPELINE__NICE": "0"},
        start_new_session=True,
        # Who runs the tests in the background may have it ignored, and children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def left_over(mark: str) -> list[int]:
    """Processes of one demo that still live: the mark is in their environment, whoever started them."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.timeout(STORY_S + 30)
def test_nothing_is_lost_or_doubled() -> None:
    """`make demo` counts 30 vehicles, an office that goes home, and tunnels to the last message."""
    mark = uuid4().hex
    demo = start(mark, "--json", "--vehicles", "30", "--reports-per-s", "2", "--chapter-s", "8")
    try:
        answer, told = demo.communicate(timeout=STORY_S)
    finally:
        demo.kill()
    assert demo.returncode == 0, f"{answer}\n{told}"
    numbers = json.loads(answer)
    for name, at_least in (("telemetry", 100), ("commands", 20)):
        line = numbers[name]
        assert line["sent"] == line["acknowledged"] == line["delivered"] >= at_least, line
        assert (line["lost"], line["duplicated"], line["reordered"]) == (0, 0, 0), line
    assert numbers["kept_for_office"] > 5  # the office was away for some seconds
    assert numbers["tunnels"] > 0
    assert numbers["commands_to_offline_vehicles"] > 0
    wait_until(lambda: not left_over(mark), 60, "everything that the demo started is gone")


def test_what_is_under_way_is_not_shown_as_lost() -> None:
    program = """
from ledger import Ledger
from rich.console import Console
from screen import result_table
ledger = Ledger()
ledger.acknowledge("vehicle-1", ledger.send("vehicle-1"))
for is_over in (False, True):
    Console(width=100).print(result_table(ledger.totals(), ledger.totals(), is_over=is_over))
"""
    words = [sys.executable, "-c", program]
    told = subprocess.run(
        words, cwd=DEMO.parent, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    running, over = told.split("telemetry", 2)[0], told.split("commands", 1)[1]
    assert "under way" in running and "lost" not in running
    assert "lost" in over and "under way" not in over


@pytest.mark.in_faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_demo_stops_what_it_started(number: signal.Signals) -> None:
    mark = uuid4().hex
    demo = start(mark, "--vehicles", "5")
    assert demo.stderr is not None
    try:
        while "vehicles drive" not in (line := demo.stderr.readline()):
            assert line, "the demo ended before its vehicles drove"
        wait_until(lambda: len(left_over(mark)) > 2, 60, "the pipeline has been started")
        demo.send_signal(number)
        _, told = demo.communicate(timeout=60)
    finally:
        demo.kill()
    if number is not signal.SIGKILL:
        assert demo.returncode == 130, told
        assert "interrupted" in told
    try:
        wait_until(lambda: not left_over(mark), 60, "everything that the demo started is gone")
    finally:
        for pid in left_over(mark):
            os.kill(pid, signal.SIGKILL)
