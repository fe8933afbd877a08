"""Whatever raises a MemoryError that nobody catches, the process ends with its own exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from embermq.app.out_of_memory import EXIT_OUT_OF_MEMORY, is_out_of_memory

PROGRAM = """
import asyncio, threading, time
import uvloop
from embermq.app.out_of_memory import end_when_out_of_memory

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
