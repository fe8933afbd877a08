"""Reading /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from embermq_bench.cost_meter import CostMeter
from embermq_bench.errors import ProcessGoneError
from embermq_bench.process_cost import (
    WatchedProcess,
    descendants,
    parse_all_watched,
    parse_stat,
    parse_watched,
    read_cpu,
    read_pss_bytes,
)

STAT = "77 (a (odd) name) S 1 77 77 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 1 0 12 34 56"


def test_stat_is_read_past_a_name_with_parentheses() -> None:
    assert parse_stat(STAT) == (200, 50)


@pytest.mark.parametrize(
    ("text", "watched"),
    [("12", WatchedProcess("broker", 12)), ("jvm=34", WatchedProcess("jvm", 34))],
)
def test_watched_processes_by_name(text: str, watched: WatchedProcess) -> None:
    assert parse_watched(text) == watched


def test_several_watched_processes_in_one_text() -> None:
    watched = parse_all_watched(["broker=12, redis=34", "redis=56"])
    assert [(process.name, process.pid) for process in watched] == [
        ("broker", 12),
        ("redis", 34),
        ("redis", 56),
    ]
    with pytest.raises(ValueError, match="nonsense"):
        parse_all_watched(["broker=12,nonsense"])


@pytest.mark.parametrize("text", ["", "=3", "broker=", "broker=x", "0", "-4"])
def test_what_is_no_process_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="="):
        parse_watched(text)


def test_a_process_that_is_gone_is_named() -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    with pytest.raises(ProcessGoneError, match=str(gone.pid)):
        read_cpu(gone.pid, children=False)
    with pytest.raises(ProcessGoneError, match=str(gone.pid)):
        read_pss_bytes(gone.pid, children=False)


def test_the_time_of_children_is_counted_while_they_live_and_after() -> None:
    burn = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n"
    script = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\nprint('done', flush=True)\n"
    parent = subprocess.Popen(
        [sys.executable, "-c", script + "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "done\n"
        reading = read_cpu(parent.pid, children=True)
        assert reading.children_s >= 0.18  # user and system time are each cut to whole ticks of 10 ms
        assert read_cpu(parent.pid, children=False).children_s == 0
        assert parent.pid in descendants(os.getpid())
        assert read_pss_bytes(os.getpid(), children=True) > read_pss_bytes(os.getpid(), children=False)
        parent.communicate("\n")


def test_a_window_counts_only_what_was_used_in_it() -> None:
    meter = CostMeter([WatchedProcess("me", os.getpid())], children=False, pss_interval_s=0)
    meter.begin()
    end = time.process_time() + 0.1
    while time.process_time() < end:
        meter.sample()
    meter.end()
    (cost,) = meter.costs()
    assert 0.05 <= cost.cpu_s <= meter.generator_cpu_s + 0.05
    assert cost.pss_peak_bytes > 1_000_000
