"""The broker's side of the pipeline: one child process, started, watched, started again with backoff, stopped.

Imports nothing of Spark. MQTT never waits for anything here.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

import msgspec
from msgspec import Struct

from embermq.pipeline.places import Places
from embermq.pipeline.settings import PipelineSettings
from embermq.pipeline.status import SupervisorReport, write_report

SupervisorState = Literal["stopped", "starting", "running", "backoff", "failed"]

LOG = logging.getLogger(__name__)
_LOOK_S = 1.0
_HEALTHY_S = 60
_TAIL_BYTES = 4_096
_ERROR_CHARACTERS_MAX = 500


class SupervisorStatistics(Struct, frozen=True):
    """A snapshot. `restarts` counts since the broker started."""

    state: SupervisorState
    pid: int
    restarts: int
    last_error: str


class PipelineSupervisor:
    """Owns the driver process. `failed` means more than `restarts_max` restarts in `restart_window_s`: it gave up."""

    def __init__(self, settings: PipelineSettings, data_dir: Path) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._places = Places(data_dir)
        self._state: SupervisorState = "stopped"
        self._child: asyncio.subprocess.Process | None = None
        self._restarts = 0
        self._restart_times: deque[float] = deque()
        self._failures = 0
        self._last_error = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to keep a driver running; returns at once. No effect when the pipeline is not enabled."""
        if self._settings.enabled and self._task is None:
            self._places.work.mkdir(parents=True, exist_ok=True)
            self._task = asyncio.create_task(self._keep(), name="pipeline-supervisor")

    async def stop(self, timeout_s: float | None = None) -> None:
        """End the driver: SIGTERM, and SIGKILL for its whole session when it takes longer than `timeout_s`."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await self._end_child(self._settings.stop_timeout_s if timeout_s is None else timeout_s)
        self._enter("stopped")

    def statistics(self) -> SupervisorStatistics:
        """State, process id (0 when there is none), restarts and the last error."""
        pid = self._child.pid if self._child is not None else 0
        return SupervisorStatistics(self._state, pid, self._restarts, self._last_error)

    async def _keep(self) -> None:
        while True:
            self._enter("starting")
            began = time.monotonic()
            try:
                await self._start_child()
                await self._watch_child()
            except OSError as error:
                self._last_error = f"cannot start or watch {sys.executable}: {error}"
            except Exception as error:  # nobody would start the driver again
                LOG.exception("watching the pipeline's driver has failed, it is started anew")
                self._last_error = f"watching the driver: unexpected {error!r}"
            await self._end_child(0)
            healthy = time.monotonic() - began > _HEALTHY_S
            self._failures = 1 if healthy else self._failures + 1
            if self._gives_up():
                self._enter("failed")
                return
            self._enter("backoff")
            doubled = self._settings.backoff_first_ms << min(self._failures - 1, 20)
            await asyncio.sleep(min(doubled, self._settings.backoff_max_ms) / 1000)
            self._restarts += 1

    def _gives_up(self) -> bool:
        now = time.monotonic()
        self._restart_times.append(now)
        while now - self._restart_times[0] > self._settings.restart_window_s:
            self._restart_times.popleft()
        return len(self._restart_times) > self._settings.restarts_max

    async def _start_child(self) -> None:
        self._rotate_log()
        self._places.status.unlink(missing_ok=True)
        with self._open_log() as output:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "embermq.pipeline",
                "--data-dir",
                str(self._data_dir.absolute()),
                "--settings-json",
                "-",
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        assert self._child.stdin is not None
        # Settings go through the pipe, not the command line; it stays open until this process ends.
        self._child.stdin.write(msgspec.json.encode(self._settings) + b"\n")
        with suppress(ConnectionError):
            await self._child.stdin.drain()
        self._enter("starting")

    async def _watch_child(self) -> None:
        """Returns when the child has ended, with the reason in `_last_error`."""
        child = self._child
        assert child is not None
        while True:
            try:
                code = await asyncio.wait_for(child.wait(), _LOOK_S)
            except TimeoutError:
                if self._state == "starting" and self._driver_runs(child.pid):
                    self._enter("running")
                self._bound_log()
                continue
            self._last_error = f"the driver ended with code {code}: {self._log_tail()}"[
                :_ERROR_CHARACTERS_MAX
            ]
            return

    def _driver_runs(self, pid: int) -> bool:
        try:
            report = msgspec.json.decode(self._places.status.read_bytes())
        except (OSError, msgspec.DecodeError):
            return False
        return isinstance(report, dict) and report.get("pid") == pid and report.get("state") == "running"

    async def _end_child(self, timeout_s: float) -> None:
        """The driver first, politely; then what is left of its session: Spark's workers have own groups."""
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None and timeout_s > 0:
            child.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(child.wait(), timeout_s)
        for pid in session_members(child.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if child.stdin is not None:
            child.stdin.close()
        await child.wait()

    def _enter(self, state: SupervisorState) -> None:
        self._state = state
        found = self.statistics()
        report = SupervisorReport(
            state=found.state, pid=found.pid, restarts=found.restarts, last_error=found.last_error
        )
        try:
            write_report(self._places.supervisor, report)
        except OSError as error:  # a full disk: the driver is kept running all the same
            LOG.warning("cannot write %s: %s", self._places.supervisor, error)

    def _open_log(self) -> IO[bytes]:
        return self._places.driver_log.open("ab")

    def _rotate_log(self) -> None:
        if self._places.driver_log.exists():
            self._places.driver_log.replace(self._places.driver_log.with_suffix(".log.1"))

    def _bound_log(self) -> None:
        """The child holds the file open for appending, so a log that is too long is copied and emptied."""
        log = self._places.driver_log
        with suppress(OSError):  # not there yet, or no room for the copy: looked at again soon
            if log.stat().st_size > self._settings.driver_log_bytes_max:
                shutil.copyfile(log, log.with_suffix(".log.1"))
                os.truncate(log, 0)

    def _log_tail(self) -> str:
        try:
            with self._places.driver_log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").strip().splitlines()
        except FileNotFoundError:
            return "no output"
        return lines[-1].strip() if lines else "no output"


def session_members(session: int) -> list[int]:
    """Processes of that session, without those that have ended and wait for their parent, or that are another user's
    and hidden."""
    members: list[int] = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in parentheses, may hold anything; after it: state, parent, group, session.
            fields = (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if int(fields[3]) == session and fields[0] not in ("Z", "X"):
            members.append(int(directory.name))
    return members
