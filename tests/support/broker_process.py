"""The program as a process of its own, for tests that kill it, fill its disk or speak to it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4
from weakref import finalize

from tests.support.forked_program import ForkedProgram
from tests.support.sharing import reserve_number, this_worker
from tests.support.waiting import wait_until

EMBERMQ = Path(sys.executable).parent / "embermq"
START_S = 120.0
STOP_S = 60.0
"""A busy machine takes many times the usual second; waiting costs nothing when all is well."""
OUTPUT_CHARACTERS = 500_000
SHOWN_CHARACTERS = 8_000
_MARK = "BROKER_PROCESS_MARK"
_PORT_FIRST = 10_240
_given: deque[int] = deque(maxlen=250)


class BrokerProcess:
    """`embermq run` on one data directory; keeps its ports over restarts.

    `settings` are `--set` assignments, `constants` what is no setting but has to be narrower for a test, `wrapper`
    words in front of the program (`strace -D ...`). With such words, with a library in front of the system's in `env`,
    or with `installed`, it is the installed program that starts (or the one at that path), as a user's would; else it
    is forked from one that has its imports behind it.

    As a context manager it starts at the entry and leaves no process behind, Spark's included; on a failure its output
    is printed. Its pipeline has the priority of everything else: beside tests that take every core, Spark gives up on a
    worker in Python that has not begun within ten seconds, and the query starts again.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        pipeline: bool = False,
        settings: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        constants: Mapping[str, object] | None = None,
        wrapper: Sequence[str] = (),
        installed: bool | Path = False,
    ) -> None:
        self.data_dir = data_dir
        self.settings = dict(settings or {})
        self.pipeline = pipeline
        self.env = dict(env or {})
        self.arguments = tuple(arguments)
        self.wrapper = tuple(wrapper)
        self.constants = dict(constants or {})
        self.installed = installed
        self.program = installed if isinstance(installed, Path) else EMBERMQ
        self.port = free_port()
        self.http_port = free_port()
        self._mark = uuid4().hex
        self._process: subprocess.Popen[bytes] | ForkedProgram | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this object
        finalize(self, self._output.close)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            sys.stderr.write(
                f"--- output of the broker on {self.data_dir}\n{self.output()[-SHOWN_CHARACTERS:]}\n---\n"
            )
        self.close()

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        """What is typed."""
        given = {
            "listeners.mqtt": f"127.0.0.1:{self.port}",
            "listeners.http": f"127.0.0.1:{self.http_port}",
            "listeners.grpc": "",
            **({"pipeline.nice": 0} if self.pipeline and not self.installed else {}),
            **self.settings,
        }
        words = [*self.wrapper, str(self.program), "run", "--data-dir", str(self.data_dir)]
        if not self.pipeline:
            words.append("--no-pipeline")
        for key, value in given.items():
            words += ["--set", f"{key}={value}"]
        return [*words, *self.arguments]

    def start(self, *, deadline_s: float = START_S) -> None:
        """Start and wait for `ready`. Raises AssertionError with the output when it does not come."""
        before = self.output_size()
        self.launch()
        wait_until(
            lambda: not self.is_running or b"\nready\n" in self.output_from(before),
            deadline_s,
            f"ready\n{self.output()}",
        )
        assert self.is_running, (
            f"the broker ended with {self._process and self._process.poll()}:\n{self.output()}"
        )

    def launch(self) -> None:
        """Start without waiting."""
        assert not self.is_running
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EMBERMQ_")}
        environment |= self.env | {_MARK: self._mark, "PYTHONUNBUFFERED": "1"}
        if not (self.installed or self.wrapper or "LD_PRELOAD" in self.env):
            with open(os.devnull, "rb") as nothing:
                self._process = ForkedProgram(
                    self.command(),
                    stdin=nothing,
                    stdout=self._output,
                    stderr=self._output,
                    environment=environment,
                    constants=self.constants,
                )
            return
        assert not self.constants, "only a forked broker has other constants"
        self._process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def wait(self, deadline_s: float = STOP_S) -> int:
        """Wait for its end; returns the exit code."""
        assert self._process is not None
        return self._process.wait(deadline_s)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone. Its children are left alone, as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)

    def stop(self, *, deadline_s: float = STOP_S) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(deadline_s)

    def restart(self) -> None:
        """Start again on the same data directory and ports; a running broker is stopped first."""
        if self.is_running:
            self.stop()
        self.start()

    def output(self) -> str:
        """The end of what all runs have printed."""
        return self.output_from(0).decode(errors="replace")[-OUTPUT_CHARACTERS:]

    def descendants(self) -> list[int]:
        """Process ids of everything that this broker, or an earlier run of it, started and that still lives."""
        own = self._process.pid if self._process is not None else 0
        return [pid for pid in _marked(self._mark) if pid != own]

    def close(self) -> None:
        """End what still lives. May be called again."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOP_S)
        wait_until(lambda: not self._kill_marked(), STOP_S, "the broker's children are gone", poll_s=0.05)

    def _kill_marked(self) -> bool:
        found = _marked(self._mark)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)

    def output_size(self) -> int:
        """Bytes that all runs have printed."""
        return os.fstat(self._output.fileno()).st_size

    def output_from(self, start: int) -> bytes:
        """What all runs have printed, from a byte on."""
        size = self.output_size()
        return os.pread(self._output.fileno(), max(0, size - start), start)


def _marked(mark: str) -> list[int]:
    """The mark is in the environment, which children inherit however they detach themselves. Zombies have none."""
    sought = f"{_MARK}={mark}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if sought in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def free_port() -> int:
    """A loopback port below those that the kernel gives to clients: such a port stays free while its broker is down,
    and a client that knocks meanwhile cannot connect to itself. Nobody else who tests on this machine is given the same
    while this process lives, nor soon this one: whoever has it may not listen yet, or be dead for a while."""
    first_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    number, workers = this_worker()
    ports = range(_PORT_FIRST + number, max(first_of_clients, _PORT_FIRST + 1_000), workers)
    # In the order of the dice: a set has one of its own, the same few ports first, which runs beside this one get too.
    for port in (one for one in random.sample(ports, 300) if one not in _given):
        with socket.socket() as candidate, suppress(OSError):
            reserve_number(port)
            candidate.bind(("127.0.0.1", port))
            _given.append(port)
            return port
    raise AssertionError("no free port was found")
