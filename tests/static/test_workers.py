"""How `make test` deals with a test that ends its worker: by a crash, or by hanging until the worker is ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
from together import FilesTogether

def pytest_xdist_make_scheduler(config, log):
    return FilesTogether(config, log)
"""
TESTS = """
import os
from pathlib import Path

HERE = Path(__file__).parent

def test_before():
    with (HERE / "before").open("a") as ran:
        ran.write("x")

def test_ends_its_worker_once():
    if not (HERE / "once").exists():
        (HERE / "once").touch()
        os._exit(1)

def test_ends_each_worker():
    os._exit(1)

def test_behind():
    pass
"""


def test_a_test_that_ends_its_worker_runs_once_more_and_not_for_ever(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_ending.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-v", "-n", "1", "--dist", "loadfile", "--reruns", "1"]
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--rootdir", tmp_path, "-c", "/dev/null", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests/support")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 3 passed, 2 rerun" in ran.stdout, ran.stdout + ran.stderr
    assert "crashed while running 'test_ending.py::test_ends_each_worker'" in ran.stdout
    assert (tmp_path / "before").read_text() == "x"
