"""What each test costs: `pytest --costs FILE` writes a line a test to FILE.gw0, FILE.gw1, ..., with seconds of wall
time and of CPU, those of all processes that it has started included.
What tests share is counted with the first of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

TICKS_S = os.sysconf("SC_CLK_TCK")
AT_ONCE_S = 0.1


class Costs:
    """The plugin that writes them."""

    def __init__(self, path: str) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._path = Path(f"{path}.{worker}")
        self._counted_s = 0.0
        """CPU seconds that are in a line already, or were used before the first test."""

    def pytest_sessionstart(self) -> None:
        """What comes before the tests is no test's."""
        self._counted_s = cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Look before and after."""
        started, own_before = time.monotonic(), time.process_time()
        answer = yield
        wall_s = time.monotonic() - started
        used_s = time.process_time() - own_before if wall_s < AT_ONCE_S else cpu_s() - self._counted_s
        self._counted_s += used_s
        line = {"test": item.nodeid, "wall_s": wall_s, "cpu_s": used_s}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return answer


def cpu_s() -> float:
    """CPU seconds of this process, of all below it, and of those of them that have ended."""
    return sum(_families())


def _families() -> Iterator[float]:
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            parents[int(entry)] = int(fields[1])
            spent[int(entry)] = sum(map(int, fields[11:15])) / TICKS_S
    for process, process_s in spent.items():
        above = process
        while above > 1 and above != os.getpid():
            above = parents.get(above, 0)
        if above == os.getpid():
            yield process_s
