"""How `make test` deals with a test that ends its worker, by a crash or by hanging until the worker is ended, and which
workers start Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.together import SPARK_WORKERS

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


FILE_OF_SPARK = """
import os
from pathlib import Path

import pytest

@pytest.fixture
def spark() -> object: ...

def test_it(spark: SparkSession):
    Path(__file__).with_suffix(".ran").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""


def test_few_workers_start_spark_and_do_all_that_needs_it(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "pipeline"
    folder.mkdir(parents=True)
    for number in range(5):
        source = f"from __future__ import annotations\n{FILE_OF_SPARK}"
        (folder / f"test_{number}.py").write_text(source)
    (tmp_path / "test_other.py").write_text("def test_it(): pass\n")
    ran = run_tests(tmp_path, workers=SPARK_WORKERS + 1)
    assert "6 passed" in ran, ran
    assert len({path.read_text() for path in folder.glob("*.ran")}) == SPARK_WORKERS


def test_a_test_that_ends_its_worker_runs_once_more_and_not_for_ever(tmp_path: Path) -> None:
    (tmp_path / "test_ending.py").write_text(TESTS)
    ran = run_tests(tmp_path, workers=1)
    assert "1 failed, 3 passed, 2 rerun" in ran, ran
    assert "crashed while running 'test_ending.py::test_ends_each_worker'" in ran
    assert (tmp_path / "before").read_text() == "x"


def run_tests(folder: Path, *, workers: int) -> str:
    """What pytest prints of the tests there, with the scheduler of `make test`."""
    (folder / "conftest.py").write_text(CONFTEST)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-n",
        str(workers),
        "--dist",
        "loadfile",
        "--reruns",
        "1",
    ]
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--rootdir", folder, "-c", "/dev/null", folder],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests/support")},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout + ran.stderr
