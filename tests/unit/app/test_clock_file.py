"""What is left of a broker's time for its next run, and what operators are told of a wall clock that moves."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.support.hand_time import DAY_MS, START_MS, HandTime

from embermq.app.clock_file import FILE_NAME, ClockFile


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "embermq")


def test_a_step_is_told_and_outlives_a_kill(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    time = HandTime()
    kept = ClockFile(tmp_path, time)
    assert kept.told() == "ok"
    time.steps(9 * DAY_MS)
    kept.look()
    assert caplog.messages == [
        "the clock was moved forward by 9 days, 0:00:00; timeouts and expiry are not affected"
    ]
    assert kept.told() == "broker time is 777600 s behind the wall clock"
    before_ms = kept.clock.now_ms()
    time.restarts(after_ms=1_000)
    assert ClockFile(tmp_path, time).clock.now_ms() == before_ms + 1_000


def test_a_clock_that_is_set_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    time = HandTime(wall_ms=0)
    kept = ClockFile(tmp_path, time)
    kept.look()
    assert kept.told() == "not set"
    time.steps(START_MS)
    kept.look()
    assert [message.split(":")[0] for message in caplog.messages] == [
        "the clock is before the date of this build, so it is not set",
        "the clock has been set",
    ]


def test_time_is_written_down_now_and_then(tmp_path: Path) -> None:
    time = HandTime()
    kept = ClockFile(tmp_path, time)
    for _ in range(61):
        time.passes(1_000)
        kept.look()
    assert ClockFile(tmp_path, HandTime(wall_ms=0)).clock.now_ms() == START_MS + 61_000


@pytest.mark.parametrize("damage", [b"", b"{", b'{"broker_ms": "x"}'])
def test_a_damaged_file_is_told_and_the_wall_clock_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    (tmp_path / FILE_NAME).write_bytes(damage)
    assert ClockFile(tmp_path, HandTime()).clock.now_ms() == START_MS
    assert "clock.json cannot be read, the wall clock alone counts" in caplog.text


def test_a_directory_that_takes_nothing_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = ClockFile(tmp_path / "missing", HandTime())
    for _ in range(3):
        kept.note()
    assert len(caplog.messages) == 1 and "clock.json cannot be written" in caplog.text
