"""Limits that follow from the memory of the machine, or of the control group."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from embermq.app.memory import EXIT_OUT_OF_MEMORY, is_out_of_memory, memory_bytes, with_memory_limits
from embermq.sessions.settings import MqttSettings

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("files", "own"),
    [
        ({"memory.max": "max", "app/memory.max": "100000000", "app/one/memory.max": "max"}, "0::/app/one\n"),
        ({"memory.max": "100000000"}, "0::/where/the/host/sees/it\n"),
        ({"memory/memory.limit_in_bytes": "100000000"}, "3:cpu:/a\n2:memory:/\n"),
    ],
)
def test_the_smallest_limit_of_the_groups_holds(tmp_path: Path, files: dict[str, str], own: str) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own)
    assert memory_bytes(tmp_path, tmp_path / "own") == 100_000_000


def test_without_groups_it_is_the_memory_of_the_machine(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path, tmp_path / "none") > 64 * MIB


def test_limits_that_are_not_set_follow_from_the_memory() -> None:
    found = with_memory_limits(MqttSettings(), 1024 * MIB)
    assert found.subscriptions_bytes_total_max == 256 * MIB
    assert (found.sessions_total_max, found.sessions_user_max) == (131_072, 65_536)
    own = MqttSettings(sessions_total_max=10, subscriptions_bytes_total_max=5)
    found = with_memory_limits(own, 1024 * MIB)
    assert (found.sessions_total_max, found.sessions_user_max, found.subscriptions_bytes_total_max) == (
        10,
        5,
        5,
    )


PROGRAM = """
import asyncio, threading, time
import uvloop
from embermq.app.memory import end_when_out_of_memory

def fail(*_):
    raise {error}

class Finalized:
    def __del__(self):
        fail()

async def task():
    fail()

async def main():
    loop = asyncio.get_running_loop()
    end_when_out_of_memory(loop)
    {act}
    await asyncio.sleep({patience})

uvloop.run(main())
"""
ACTS = [
    "loop.call_soon(fail)",
    "loop.create_task(task())",
    "threading.Thread(target=fail).start()",
    "Finalized()",
    "fail()",
]


@pytest.mark.parametrize("act", ACTS)
def test_the_process_ends(act: str) -> None:
    program = PROGRAM.format(act=act, error="MemoryError", patience=60)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == EXIT_OUT_OF_MEMORY
    assert done.stderr.count(b"\n") == 1
    assert b"no memory is left" in done.stderr


def test_other_errors_are_told_as_ever_and_end_nothing() -> None:
    program = PROGRAM.format(act=ACTS[0], error="ValueError('told')", patience=0)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0
    assert b"ValueError: told" in done.stderr


def test_an_error_that_comes_of_one_counts() -> None:
    error = ValueError()
    error.__context__ = MemoryError()
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError())
    assert not is_out_of_memory(None)
