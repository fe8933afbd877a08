"""`embermq` as a process that needs no time for its imports: it is forked from one that has them.

It is the same program with the same arguments, in a session, directory and environment of its own; what differs is that
no Python starts. The e2e tests start the installed program itself, and so does whoever needs something in its place
(`strace`) or in its loader's environment.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

SEED = Path(__file__).with_name("program_seed.py")
FORKED_S = 60.0
ANSWER_BYTES = 32
_LOCK = threading.Lock()


class ForkedProgram:
    """What `subprocess.Popen` is of a program that it starts: `words` begin with the program's name. `constants` have
    other values there, named by module: `embermq.edge.connection.CLOSE_MS`."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        stdin: IO[bytes],
        stdout: IO[bytes],
        stderr: IO[bytes],
        environment: Mapping[str, str],
        constants: Mapping[str, object] | None = None,
    ) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        request = {
            "words": self.args,
            "environment": dict(environment),
            "directory": os.getcwd(),
            "constants": dict(constants or {}),
        }
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files = [theirs.fileno(), stdin.fileno(), stdout.fileno(), stderr.fileno()]
        kind = "broker" if self.args[1:2] == ["run"] else "command"
        with theirs, _LOCK:
            socket.send_fds(_seed(kind), [json.dumps(request).encode()], files)
        self._answers.settimeout(FORKED_S)
        self.pid = self._answer()
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, as `Popen` gives it; None while it runs."""
        with self._lock:
            if self.returncode is None and self._is_readable(0):
                self.returncode = self._answer()
                self._answers.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        end_s = time.monotonic() + (FORKED_S if timeout is None else timeout)
        while (code := self.poll()) is None:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or FORKED_S)
            self._is_readable(left_s)
        return code

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(self.pid, number)

    def _is_readable(self, timeout_s: float) -> bool:
        if self._answers.fileno() < 0:  # somebody else has heard of the end
            return True
        waiting = select.poll()
        waiting.register(self._answers, select.POLLIN)
        return bool(waiting.poll(timeout_s * 1_000))

    def _answer(self) -> int:
        answer = self._answers.recv(ANSWER_BYTES)
        assert answer, "what forks programs for the tests has ended"
        return int(answer)


def run_program(
    *words: str | Path,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    timeout_s: float = FORKED_S,
) -> subprocess.CompletedProcess[str]:
    """`embermq WORDS...`, with all that it printed. `environment` is added to that of the tests."""
    typed = ["embermq", *map(str, words)]
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        program = ForkedProgram(
            typed, stdin=given, stdout=out, stderr=err, environment=os.environ | (environment or {})
        )
        try:
            code = program.wait(timeout_s)
        finally:
            program.kill()
            program.wait()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(typed, code, out.read().decode(), err.read().decode())


@cache
def _seed(kind: str) -> socket.socket:
    """One for all brokers that this process starts, and one for all commands. It ends when nobody can ask it any
    more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", str(SEED), str(theirs.fileno()), kind],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    atexit.register(_end, ours, process)
    return ours


def _end(requests: socket.socket, process: subprocess.Popen[bytes]) -> None:
    requests.close()
    process.wait()
