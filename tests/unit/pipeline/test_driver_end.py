"""How a driver ends by itself, and says why; and what it tells while it waits for a beginning."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.support.waiting import wait_until

from embermq.pipeline import driver as driver_module
from embermq.pipeline.driver import Driver
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.status import read_status

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
        assert driver.wait(60) == 1, said
    assert "nobody foresaw this" in said and "Fatal Python error" not in said


def test_being_stopped_while_it_reports_is_no_lost_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(DriverSettings(), tmp_path)
    monkeypatch.setattr(driver_module, "_REPORT_S", 0)
    monkeypatch.setattr(driver, "_report", lambda state: driver.stop())
    assert driver._watch() == 0
    driver._sockets.rmdir()


@pytest.mark.promise("pipeline-13")
def test_a_driver_that_waits_for_kafka_is_starting_for_as_long_as_it_waits(tmp_path: Path) -> None:
    """A report of its beginning alone is too old after ten seconds, and counts as of a driver that is dead."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    settings = DriverSettings(kafka=KafkaLog(bootstrap=nobody))
    with subprocess.Popen(
        [sys.executable, "-m", "embermq.pipeline", "--data-dir", str(tmp_path), "--settings-json", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as driver:
        assert driver.stdin is not None and driver.stderr is not None
        driver.stdin.write(msgspec.json.encode(settings) + b"\n")
        driver.stdin.flush()
        wait_until(lambda: read_status(tmp_path).waits_for, 60, "it says what it waits for")
        before = read_status(tmp_path)
        assert (before.state, before.pid) == ("starting", driver.pid)
        assert nobody in before.waits_for
        wait_until(
            lambda: read_status(tmp_path).updated_ms > before.updated_ms + 1_000, 60, "it is told again"
        )
        assert read_status(tmp_path).state == "starting"
        driver.stdin.close()  # its parent goes
        driver.wait(60)
        driver.stderr.close()
    ended = read_status(tmp_path)
    assert (ended.state, ended.waits_for) == ("down", "")
