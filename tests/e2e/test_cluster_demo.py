"""`make cluster-demo`: as a person runs it, with shorter chapters."""

from __future__ import annotations

import json
import os
import signal
from uuid import uuid4

import pytest
from tests.e2e.test_demo import ROOT, left_over, start
from tests.support.waiting import wait_until

DEMO = ROOT / "examples" / "cluster" / "demo.py"
STORY_S = 600
"""Its own limits; usually it takes 60 s."""


@pytest.mark.in_faults
@pytest.mark.timeout(STORY_S + 90)
def test_a_node_is_killed_and_nothing_is_lost_or_doubled() -> None:
    mark = uuid4().hex
    demo = start(mark, "--json", "--publishers", "4", "--chapter-s", "3", demo=DEMO)
    try:
        answer, told = demo.communicate(timeout=STORY_S)
    finally:
        demo.kill()
    assert demo.returncode == 0, f"{answer}\n{told}"
    numbers = json.loads(answer)
    assert numbers.pop("takeover_s") > 0
    assert len(numbers) == 2, "a watcher for each slot"
    for line in numbers.values():
        assert line["sent"] == line["acknowledged"] == line["delivered"] > 100, line
        assert (line["lost"], line["doubled"], line["reordered"]) == (0, 0, 0), line
    wait_until(lambda: not left_over(mark), 60, "everything that the demo started is gone")


@pytest.mark.in_faults
@pytest.mark.timeout(STORY_S + 90)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("chapter", ["start", "clients publish"])
def test_an_interrupted_demo_stops_what_it_started(number: signal.Signals, chapter: str) -> None:
    mark = uuid4().hex
    demo = start(mark, "--publishers", "2", "--chapter-s", "60", demo=DEMO)
    assert demo.stderr is not None
    try:
        while chapter not in (line := demo.stderr.readline()):
            assert line, "the demo has ended early"
        wait_until(lambda: len(left_over(mark)) > 2, 60, "servers have been started")
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
