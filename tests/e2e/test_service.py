"""The unit for systemd that `embermq service install` writes, and what a broker tells systemd."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import EMBERMQ, START_S, BrokerProcess
from tests.support.waiting import wait_until

EXPOSURE_MAX = 29
"""Of 100, by systemd's own count."""


def service(*words: str | Path, code: int = 0) -> str:
    """Run `embermq service`; returns what it printed."""
    command = [str(EMBERMQ), "service", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_systemd_finds_the_unit_good_and_shut_off(tmp_path: Path) -> None:
    config = tmp_path / "em ber$%.toml"
    config.write_text("")
    assert "systemctl enable --now embermq" in service("install", "--config", config, "--into", tmp_path)
    unit = tmp_path / "embermq.service"
    (start,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    lines = unit.read_text().splitlines()
    assert lines.index("StartLimitIntervalSec=0") < lines.index("[Service]") < lines.index("RestartSec=2")
    written = str(config).replace("%", "%%").replace("$", "$$")
    assert start == f'ExecStart={EMBERMQ} run --data-dir /var/lib/embermq --config "{written}"'
    for words in (["verify"], ["security", "--offline=true", f"--threshold={EXPOSURE_MAX}"]):
        done = subprocess.run(
            ["systemd-analyze", *words, unit], capture_output=True, text=True, timeout=START_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "embermq.service:" not in done.stderr  # a line that is not understood is no error of theirs


def test_a_unit_that_is_there_is_kept(tmp_path: Path) -> None:
    service("install", "--into", tmp_path)
    unit = tmp_path / "embermq.service"
    own = unit.read_text()
    service("install", "--into", tmp_path)
    unit.write_text("[Service]\n")
    assert "--replace" in service("install", "--into", tmp_path, code=1)
    assert unit.read_text() == "[Service]\n"
    service("install", "--into", tmp_path, "--replace")
    assert unit.read_text() == own == service("install", "--print")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--user", "a b"], "is not the name of a system user"),
        (["--config", "/nowhere"], "/nowhere is not a file"),
        (["--into", "/nowhere"], "/nowhere"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], why: str) -> None:
    assert why in service("install", *words, code=1)


@pytest.fixture(params=["path", "abstract"])
def listening(request: pytest.FixtureRequest) -> Iterator[tuple[str, socket.socket]]:
    """What NOTIFY_SOCKET names, and the socket there."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        path = f"{folder}/notify"
        there.bind(path if request.param == "path" else "\0" + path)
        there.settimeout(START_S)
        yield path if request.param == "path" else "@" + path, there


def test_systemd_is_told_when_the_broker_is_ready_and_when_it_stops(
    tmp_path: Path, listening: tuple[str, socket.socket]
) -> None:
    address, there = listening
    with BrokerProcess(tmp_path, env={"NOTIFY_SOCKET": address}) as broker:
        assert there.recv(100) == b"READY=1\nSTATUS=serves"
        socket.create_connection(("127.0.0.1", broker.port), START_S).close()
        os.kill(broker.pid, signal.SIGTERM)
        assert there.recv(100) == b"STOPPING=1"


def test_a_systemd_that_is_away_is_no_trouble(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", env={"NOTIFY_SOCKET": str(tmp_path / "nothing")}) as broker:
        wait_until(lambda: "systemd is not told READY=1" in broker.output(), START_S, "a warning")
