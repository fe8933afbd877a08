"""A server that tests start for themselves, pause, kill and heal; each kind says how it starts and when it answers."""

from __future__ import annotations

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.waiting import wait_until

STOP_S = 60.0
OUTPUT_CHARACTERS = 4_000
_TICKS = os.sysconf("SC_CLK_TCK")
_STARTER = ThreadPoolExecutor(1, "server-starter")
"""A server ends with the thread that started it, even when the tests are killed: so one that lasts starts them all."""


class ServerProcess(ABC):
    """One process on one folder; keeps its ports and data over restarts.

    As a context manager it starts at the entry and leaves no process behind.
    """

    name: str
    start_s = 20.0

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._cpu_s_before = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What starts the server in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it does its work, which it does not while it is down, paused or reads its data."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start without waiting."""
        assert not self.is_running
        command = ["setpriv", "--pdeathsig", "KILL", *self.command()]

        def start() -> subprocess.Popen[bytes]:
            with (self.folder / "output.txt").open("ab") as output:
                return subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )

        self._process = _STARTER.submit(start).result()

    def start(self) -> None:
        """Start and wait until it answers and has read its data."""
        self.launch()
        self.wait()

    def wait(self) -> None:
        """Until it answers, after a launch; it is ended when it does not."""
        try:
            wait_until(lambda: not self.is_running or self.answers(), self.start_s, f"{self.name} answers")
            assert self.is_running, f"{self.name} ended"
        except AssertionError as error:
            self.close()
            raise AssertionError(f"{error}\n{self.output()}") from error

    def wait_for_end(self) -> None:
        """However long it runs."""
        assert self._process is not None
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: has_stopped(self.pid), STOP_S, f"{self.name} stands still")

    def resume(self) -> None:
        """End a pause."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._process is not None
        self._note_cpu()
        self._process.kill()
        self._process.wait(STOP_S)
        self.forget_connection()

    def stop(self) -> None:
        """SIGTERM, as an operator stops it."""
        assert self._process is not None
        self.resume()
        self._note_cpu()
        self._process.terminate()
        self._process.wait(STOP_S)
        self.forget_connection()

    def restart(self) -> None:
        """Start again on the same ports and data; a running server is stopped first."""
        if self.is_running:
            self.stop()
        self.start()

    def heal(self) -> None:
        """Whatever a test did to it: running, and answering."""
        if self.is_running:
            self.resume()
        else:
            self.launch()
        self.wait()

    def cpu_s(self) -> float:
        """CPU seconds of all runs and threads, for the bench."""
        return self._cpu_s_before + (_cpu_s(self.pid) if self.is_running else 0.0)

    def output(self) -> str:
        """The end of its log."""
        path = self.folder / "output.txt"
        return path.read_text(errors="replace")[-OUTPUT_CHARACTERS:] if path.exists() else ""

    def close(self) -> None:
        """End it if it lives. May be called again."""
        if self.is_running:
            self.kill()
        self.forget_connection()

    def forget_connection(self) -> None:  # noqa: B027 - not each kind has one
        """Let go of what the tests' own questions were asked with."""

    def _note_cpu(self) -> None:
        if self.is_running:
            self._cpu_s_before += _cpu_s(self.pid)


def has_stopped(pid: int) -> bool:
    """Whether no thread of a process runs after SIGSTOP: each goes on until its next turn of the CPU."""
    return all(_state(stat) in "TZX" for stat in Path(f"/proc/{pid}/task").glob("*/stat"))


def _state(stat: Path) -> str:
    """The letter of proc(5): T is stopped; Z for one that has gone meanwhile."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _cpu_s(pid: int) -> float:
    """User and system time of a process, its threads and ended children included."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / _TICKS
