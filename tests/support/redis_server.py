"""A real redis-server on a free loopback port, for tests that store in it, pause it or kill it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.support.broker_process import free_port
from tests.support.waiting import wait_until

START_S = 20.0
STOP_S = 20.0
ANSWER_S = 10.0
OUTPUT_CHARACTERS = 4_000
_TICKS = os.sysconf("SC_CLK_TCK")
_STARTER = ThreadPoolExecutor(1, "redis-starter")
"""A server ends with the thread that started it, even when the tests are killed: so one that lasts starts them all."""

Fsync = Literal["always", "everysec", "no"]


class RedisServer:
    """`redis-server` on one folder; keeps its port and data over restarts.

    `settings` are further words of redis.conf, for example `{"maxmemory": "2mb"}`. With `password` it wants one; with
    `certificate` (PEM file, with key) and `authority` its port speaks TLS and nothing else. As a context manager it
    starts at the entry and leaves no process behind.
    """

    def __init__(
        self,
        folder: Path,
        *,
        appendonly: bool = True,
        appendfsync: Fsync = "everysec",
        password: str = "",
        certificate: Path | None = None,
        authority: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.password = password
        self.authority = authority
        self.settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(folder),
            "save": "",
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": appendfsync,
            "repl-diskless-sync-delay": "0",
            "enable-debug-command": "local",
        }
        if password:
            self.settings |= {"requirepass": password, "masterauth": password}
        if certificate is not None:
            self.settings |= {
                "port": "0",
                "tls-port": str(self.port),
                "tls-cert-file": str(certificate),
                "tls-key-file": str(certificate),
                "tls-ca-cert-file": str(authority),
                "tls-auth-clients": "no",
            }
        self.settings |= settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._cpu_s_before = 0.0
        self._connection: Any = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """As `stores.session` takes it, with the password if there is one."""
        scheme = "rediss" if "tls-port" in self.settings else "redis"
        user = f":{self.password}@" if self.password else ""
        return f"{scheme}://{user}127.0.0.1:{self.port}"

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
        command = ["setpriv", "--pdeathsig", "KILL", "redis-server"]
        for name, value in self.settings.items():
            command += [f"--{name}", value]

        def start() -> subprocess.Popen[bytes]:
            with (self.folder / "output.txt").open("ab") as output:
                return subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )

        self._process = _STARTER.submit(start).result()

    def start(self) -> None:
        """Start and wait until it answers and has read its data."""
        self.launch()
        try:
            wait_until(lambda: not self.is_running or self.answers(), START_S, "redis-server answers")
            assert self.is_running, f"redis-server ended:\n{self.output()}"
        except AssertionError as error:
            self.close()
            raise AssertionError(f"{error}\n{self.output()}") from error

    def answers(self) -> bool:
        """Whether it answers a PING, which it does not while it is down or reads its data."""
        try:
            return bool(self.ask("PING") == b"PONG")
        except redis.RedisError:
            return False

    def ask(self, *words: str | bytes | float) -> Any:
        """The answer to one command as the server gives it, texts as bytes; asked once. Raises redis.RedisError."""
        if self._connection is None:
            self._connection = self._new_connection()
        try:
            self._connection.send_command(*words)
            return self._connection.read_response()
        except redis.ConnectionError:
            self._forget_connection()
            raise

    def _new_connection(self) -> Any:
        """One of redis-py's connections, which have few types."""
        tls = "tls-port" in self.settings
        kind: Any = redis.SSLConnection if tls else redis.Connection
        settings = {
            "host": "127.0.0.1",
            "port": self.port,
            "password": self.password or None,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": ANSWER_S,
            "protocol": 2,
        }
        return kind(**settings, **({"ssl_ca_certs": str(self.authority)} if tls else {}))

    def flush(self) -> None:
        """Delete all that is stored and all scripts that are loaded."""
        self.ask("FLUSHALL", "SYNC")
        self.ask("SCRIPT", "FLUSH", "SYNC")

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._process is not None
        self._note_cpu()
        self._process.kill()
        self._process.wait(STOP_S)
        self._forget_connection()

    def stop(self) -> None:
        """SIGTERM, as an operator stops it."""
        assert self._process is not None
        self.resume()
        self._note_cpu()
        self._process.terminate()
        self._process.wait(STOP_S)
        self._forget_connection()

    def restart(self) -> None:
        """Start again on the same port and data; a running server is stopped first."""
        if self.is_running:
            self.stop()
        self.start()

    def heal(self) -> None:
        """Whatever a test did to it: running, and answering."""
        if not self.is_running:
            self.start()
        self.resume()
        wait_until(self.answers, START_S, "redis-server answers")

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
        self._forget_connection()

    def _note_cpu(self) -> None:
        if self.is_running:
            self._cpu_s_before += _cpu_s(self.pid)

    def _forget_connection(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None


def _cpu_s(pid: int) -> float:
    """User and system time of a process, its threads and ended children included."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / _TICKS
