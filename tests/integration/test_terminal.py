"""SIGHUP: the end of a broker whose terminal is gone, an order to read files again for every other one."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

READ_AGAIN = "there is no TLS listener, so no certificates to read again"
BEGIN = """
import os, signal, sys
os.open(sys.argv[1], os.O_RDWR)  # the first terminal that a session's leader opens is the session's
# Who runs the tests may have asked for no hangup, and children inherit that.
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[2] == "nohup" else signal.SIG_DFL)
os.execv(sys.argv[3], sys.argv[3:])
"""
SPARK_S = 60


@pytest.fixture
def window() -> Iterator[tuple[io.FileIO, str]]:
    """The side of a terminal that its window has, and the name of the other one. As files, which are closed once: the
    number of a closed one is soon another's, of any thread."""
    outside, inside = map(io.FileIO, os.openpty())
    with outside, inside:
        yield outside, os.ttyname(inside.fileno())


def broker_on(
    window: tuple[io.FileIO, str], data_dir: Path, how: str = "", *, pipeline: bool = False
) -> BrokerProcess:
    return BrokerProcess(data_dir, wrapper=(sys.executable, "-c", BEGIN, window[1], how), pipeline=pipeline)


def names_of(pids: list[int]) -> set[str]:
    found: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            found.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


def test_a_closed_terminal_ends_broker_driver_and_jvm(tmp_path: Path, window: tuple[io.FileIO, str]) -> None:
    with broker_on(window, tmp_path, pipeline=True) as broker:
        wait_until(lambda: "java" in names_of(broker.descendants()), SPARK_S, "the JVM has begun")
        window[0].close()
        assert broker.wait() == 0
        wait_until(lambda: not broker.descendants(), SPARK_S, "nothing is left")
        assert "the terminal was closed, the broker stops" in broker.output()


def test_files_are_read_again_while_the_terminal_is_there(
    tmp_path: Path, window: tuple[io.FileIO, str]
) -> None:
    with broker_on(window, tmp_path) as broker:
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: READ_AGAIN in broker.output(), what="it has read again")
        assert broker.stop() == 0


def test_who_asks_for_no_hangup_gets_none(tmp_path: Path, window: tuple[io.FileIO, str]) -> None:
    with broker_on(window, tmp_path, "nohup") as broker:
        window[0].close()
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: READ_AGAIN in broker.output(), what="it has read again")
        assert broker.stop() == 0
