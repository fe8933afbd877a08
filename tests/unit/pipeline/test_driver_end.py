"""A driver that something nobody foresaw happens to ends by itself, and says what it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from embermq.pipeline import driver as driver_module
from embermq.pipeline.driver import Driver
from embermq.pipeline.settings import DriverSettings

BREAKS = """
import os, runpy, sys
from embermq.pipeline import driver
def run(self):
    raise KeyError("nobody foresaw this")
driver.Driver.run = run
sys.argv = ["embermq.pipeline", "--data-dir", sys.argv[1], "--settings-json", "-"]
runpy.run_module("embermq.pipeline", run_name="__main__")
"""


def test_it_does_not_abort_while_it_waits_for_its_parent(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BREAKS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as driver:
        assert driver.stdin is not None and driver.stderr is not None
        driver.stdin.write(msgspec.json.encode(DriverSettings()) + b"\n")
        driver.stdin.flush()
        said = driver.stderr.read().decode()
        assert driver.wait(20) == 1, said
    assert "nobody foresaw this" in said and "Fatal Python error" not in said


def test_being_stopped_while_it_reports_is_no_lost_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(DriverSettings(), tmp_path)
    monkeypatch.setattr(driver_module, "_REPORT_S", 0)
    monkeypatch.setattr(driver, "_report", lambda state: driver.stop())
    assert driver._watch() == 0
    driver._sockets.rmdir()
