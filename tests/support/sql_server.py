"""An SQL server that a test starts for itself: a free loopback port, a folder that goes with it, no service touched."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import BinaryIO, Self
from urllib.parse import quote

from tests.support.broker_process import free_port
from tests.support.server_process import has_stopped
from tests.support.waiting import wait_until

START_S = 60.0
STOP_S = 30.0
POLL_S = 0.05
ROOT_PLACES = (Path("/tmp"), Path("/var/tmp"))


class SqlServer(ABC):
    """One server process. Keeps its port and its data over stops, kills and restarts; `close` removes all of it.

    Root runs it as an unprivileged user, since these servers refuse root. The password needs quoting in a URL.
    """

    scheme: str
    account: str
    """Who runs it when the tests run as root; nobody when there is no such user."""

    def __init__(self) -> None:
        self.user = "ember"
        self.password = f"{token_hex(8)}/@:%2"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._run_as = _unprivileged(self.account) if os.geteuid() == 0 else None
        place = next(place for place in [Path(tempfile.gettempdir()), *ROOT_PLACES] if self._may_enter(place))
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.account}-", dir=place))
        if self._run_as is not None:
            os.chown(self.folder, self._run_as.pw_uid, self._run_as.pw_gid)

    def __enter__(self) -> Self:
        try:
            self.create()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None and self.is_running, "the server is not running"
        return self._process.pid

    @property
    def log(self) -> Path:
        """What the server has printed."""
        return self.folder / "log"

    def url(self, database: str) -> str:
        """What `stores.static` takes."""
        return f"{self.scheme}://{self.user}:{quote(self.password, safe='')}@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{token_hex(6)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database and whoever is connected to it."""
        self.execute(f"DROP DATABASE {url.rpartition('/')[2]} {self.drop_option}")

    drop_option = ""

    @abstractmethod
    def create(self) -> None:
        """Make the folder of data."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What starts the server in the foreground."""

    @abstractmethod
    def execute(self, statement: str, *, database: str | None = None) -> list[tuple[object, ...]]:
        """Run one statement as the owner of everything; the rows. Raises the driver's error."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it can be connected to."""

    def start(self, *, deadline_s: float = START_S) -> None:
        """Start, and wait until it answers."""
        self.launch()
        wait_until(self._answers_or_again, deadline_s, f"a server\n{self._printed()}", poll_s=POLL_S)

    def launch(self) -> None:
        """Start without waiting."""
        assert not self.is_running
        with self.log.open("ab") as log:
            self._process = self._open(self.command(), log)

    def stop(self) -> None:
        """End it in order, as a person would who knows that clients are connected."""
        assert self._process is not None
        self._process.send_signal(self.stop_signal)
        self._process.wait(STOP_S)

    stop_signal = signal.SIGTERM

    def kill(self) -> None:
        """SIGKILL for the server and its children, and wait until all are gone."""
        assert self._process is not None
        children = _children(self._process.pid)
        self._process.kill()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(STOP_S)
        wait_until(lambda: not any(map(_lives, children)), STOP_S, "its children are gone")

    def restart(self) -> None:
        """Start again on the same data and port; a running one is stopped first."""
        if self.is_running:
            self.stop()
        self.start()

    def pause(self) -> None:
        """It and its children do nothing more, while their sockets stay open: what a stalled machine looks like.

        The signal alone stops nobody yet: a thread that is at work goes on until it has its next turn of the CPU.
        """
        self._signal_all(signal.SIGSTOP)
        wait_until(
            lambda: all(map(has_stopped, [self.pid, *_children(self.pid)])), STOP_S, "all of it stands still"
        )

    def resume(self) -> None:
        """End a pause."""
        self._signal_all(signal.SIGCONT)

    def heal(self) -> None:
        """Running and at work, whatever a test did to it."""
        if self.is_running:
            self.resume()
        else:
            self.start()

    def close(self) -> None:
        """End what still lives, and remove the data."""
        if self.is_running:
            with suppress(OSError):
                self.resume()
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, command: Sequence[str]) -> None:
        """Run a program of the server to its end, as the server's user. Raises AssertionError with what it printed."""
        with self.log.open("ab") as log:
            assert self._open(command, log).wait(START_S) == 0, f"{command[0]} failed\n{self._printed()}"

    def own(self, path: Path) -> Path:
        """Give a file to the server's user, readable by nobody else."""
        if self._run_as is not None:
            os.chown(path, self._run_as.pw_uid, self._run_as.pw_gid)
        path.chmod(0o600)
        return path

    def _signal_all(self, number: signal.Signals) -> None:
        """A child may end, its connection closed, before its turn comes."""
        for pid in [self.pid, *_children(self.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _open(self, command: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
        who = self._run_as
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", "HOME": str(self.folder)},
            start_new_session=True,
            user=who.pw_uid if who else None,
            group=who.pw_gid if who else None,
            extra_groups=[] if who else None,
        )

    def _answers_or_again(self) -> bool:
        """A server that was killed a moment ago may leave what refuses the next one for as long."""
        if not self.is_running:
            self.launch()
        return self.answers()

    def _may_enter(self, place: Path) -> bool:
        return self._run_as is None or all(
            folder.stat().st_mode & 0o001 for folder in [place, *place.resolve().parents]
        )

    def _printed(self) -> str:
        return self.log.read_text(errors="replace")[-4_000:] if self.log.exists() else ""


def program(name: str, pattern: str) -> str:
    """Where a program of a server is, whichever version Debian has: the newest of `pattern`, or what the path has."""
    found = sorted(
        Path("/").glob(pattern), key=lambda path: [int(part) for part in path.parts if part.isdigit()]
    )
    path = (
        str(found[-1]) if found else shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    )
    assert path, f"there is no {name}: scripts/debian-packages installs what the tests need"
    return path


def _unprivileged(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return pwd.getpwnam("nobody")


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _lives(pid: int) -> bool:
    """Whether it is there, and not only waits to be reaped."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
