"""The broker's side of the pipeline: one child process, started, watched, started again with backoff, stopped.

Imports nothing of Spark. MQTT never waits for anything here.

Whether the pipeline gets anything done, whatever its processes say of themselves. Judged by what the sinks have
confirmed: a driver whose threads, JVM or workers have stopped working still says that it runs.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

import msgspec
from msgspec import Struct

from embermq.compiled import VARIABLE
from embermq.pipeline.places import Places
from embermq.pipeline.rules.settings import RuleSettings, check_rules
from embermq.pipeline.settings import DriverSettings, check_settings
from embermq.pipeline.status import PipelineStatus, QueryStatus, SupervisorReport, write_report
from embermq.pipeline.turns import TURN_S

DOUBLED_MAX = 4


class _Seen(Struct):
    """One query: where it was when it last got something done, or had nothing to do."""

    position: int
    restarts: int
    since_s: float
    is_starting: bool


class ProgressWatch:
    """Compares each look at the status with the ones before; times are of one monotonic clock.

    Queries start one after the other, so one that is starting has the turns of all besides. Patience doubles with each
    driver that was begun anew in vain: a machine may be that slow, or a batch that large.
    """

    def __init__(self, settings: DriverSettings) -> None:
        self._patience_s = patience_s(settings)
        self._start_s = TURN_S * len(settings.queries)
        self._seen: dict[str, _Seen] = {}
        self._in_vain = 0
        self._stalled = ""
        self._stalled_query = ""

    @property
    def stalled(self) -> str:
        """Which query has got nothing done for too long, in words; "" for none. Holds until it gets something done."""
        return self._stalled

    def begin(self, now_s: float) -> None:
        """A driver begins: it has its time from now on."""
        for seen in self._seen.values():
            seen.since_s = now_s

    def look(self, found: PipelineStatus, now_s: float) -> bool:
        """Whether the driver is to be begun anew."""
        if found.waits_for:  # there is nothing to be done before that comes
            self.begin(now_s)
            return False
        overdue = [query for query in found.queries if self._is_overdue(query, now_s)]
        if not overdue:
            return False
        first = next((query for query in overdue if query.name == "dispatch"), overdue[0])
        lasts_s = now_s - self._seen[first.name].since_s
        self._stalled_query = first.name
        self._stalled = (
            f"{first.name} has got nothing done for {lasts_s:.0f} s, although {first.lag_messages} "
            "records wait"
        )
        self._in_vain += 1
        self.begin(now_s)
        return True

    def _is_overdue(self, query: QueryStatus, now_s: float) -> bool:
        if query.name not in self._patience_s:
            return False
        is_starting = query.state in ("starting", "stopped")  # the driver has it not yet: it is starting, too
        seen = self._seen.setdefault(query.name, _Seen(query.position, query.restarts, now_s, is_starting))
        if query.position != seen.position or not query.lag_messages:
            if query.name == self._stalled_query:
                self._stalled = self._stalled_query = ""
                self._in_vain = 0
            seen.position, seen.since_s = query.position, now_s
        elif seen.is_starting and not is_starting:
            seen.since_s = now_s
        elif query.name != "dispatch" and (
            query.state in ("backoff", "paused") or query.restarts != seen.restarts
        ):
            # It fails and says why, mostly since a database is away, or stands still because it was told to: another
            # driver would only interrupt the others.
            seen.since_s = now_s
        seen.restarts, seen.is_starting = query.restarts, is_starting
        patience_s = self._patience_s[query.name] + (self._start_s if is_starting else 0)
        return now_s - seen.since_s > patience_s * (1 << min(self._in_vain, DOUBLED_MAX))


def patience_s(settings: DriverSettings) -> Mapping[str, float]:
    """Seconds that each query may take from one batch to the next. A statement of the archive that its server has not
    answered ends by itself: another driver would only interrupt the others."""
    bulk_ms = settings.bulk_trigger_ms
    between_ms = {
        "dispatch": max(
            settings.dispatch_trigger_ms, settings.dispatch_rest_ms, settings.realtime_batch_s * 1_000
        ),
        "archive": bulk_ms + (settings.archive_timeout_s * 1_000 if settings.message_store else 0),
        "lake": bulk_ms,
        "traffic": bulk_ms,
    }
    return {query: settings.progress_timeout_s + between_ms[query] / 1_000 for query in settings.queries}


SupervisorState = Literal["stopped", "waiting", "starting", "running", "backoff", "failed"]

LOG = logging.getLogger(__name__)
_LOOK_S = 1.0
_HEALTHY_S = 60
FAILED_PAUSES = 20
"""While the state is `failed` a pause is at most so many times the usual longest one."""
_TAIL_BYTES = 4_096
_ERROR_CHARACTERS_MAX = 500


class SupervisorStatistics(Struct, frozen=True):
    """A snapshot. `restarts` counts since the broker started."""

    state: SupervisorState
    pid: int
    restarts: int
    last_error: str
    stalled: str = ""
    """Which query gets nothing done although records wait, in words: then the pipeline is down, whatever `state` is."""

    @property
    def is_out(self) -> bool:
        """Whether nobody can rely on the pipeline now."""
        return self.state == "failed" or bool(self.stalled)


class PipelineSupervisor:
    """Owns the driver process. `failed` means more than `restarts_max` restarts in `restart_window_s`, and no driver
    since that has run for a minute; it is tried again for ever, at growing intervals."""

    def __init__(self, settings: DriverSettings, data_dir: Path, *, is_apart: bool = False) -> None:
        self._settings = settings
        self._is_apart = is_apart
        self._data_dir = data_dir
        self._places = Places(data_dir)
        self._state: SupervisorState = "stopped"
        self._child: asyncio.subprocess.Process | None = None
        self._restarts = 0
        self._restart_times: deque[float] = deque()
        self._failures = 0
        self._has_failed = False
        self._running_since_s = 0.0
        self._progress = ProgressWatch(settings)
        self._is_to_begin_anew = self._is_renewed = False
        self._wanted = asyncio.Event()
        self._last_error = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self, *, is_wanted: bool = True) -> None:
        """Begin to keep a driver running, once it is wanted; returns at once. No effect when the pipeline is not
        enabled."""
        if self._settings.enabled and self._task is None:
            self._places.work.mkdir(parents=True, exist_ok=True)
            if is_wanted:
                self._wanted.set()
            else:
                self._settings = msgspec.structs.replace(self._settings, has_waited=True)
                self._places.status.unlink(missing_ok=True)
                self._enter("waiting")
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
        return SupervisorStatistics(
            self._state, pid, self._restarts, self._last_error, self._progress.stalled
        )

    def note(self, found: PipelineStatus, *, is_wanted: bool = True) -> None:
        """Take what a look at the pipeline has found: a driver that gets nothing done is begun anew. What has been
        wanted once stays so."""
        if self._task is None:
            return
        if is_wanted:
            self._wanted.set()
        before = self._progress.stalled
        if self._progress.look(found, time.monotonic()) and self._child is not None:
            self._is_to_begin_anew = True
        if self._progress.stalled != before:
            self._enter(self._state)

    def check_rules(self, rules: Mapping[str, RuleSettings]) -> None:
        """Raise PipelineSettingsError for what a driver could not have beside its other settings."""
        check_rules(rules)
        check_settings(msgspec.structs.replace(self._settings, rules=rules))

    def renew_rules(self, rules: Mapping[str, RuleSettings]) -> None:
        """Go on with these: a driver that runs is ended in order, and another one is started. Rules make it wanted."""
        self._settings = msgspec.structs.replace(self._settings, rules=rules)
        self._progress = ProgressWatch(self._settings)
        self._progress.begin(time.monotonic())
        self._is_renewed = True
        if rules and self._task is not None:
            self._wanted.set()

    async def _keep(self) -> None:
        await self._wanted.wait()
        while True:
            self._enter("starting")
            try:
                await self._start_child()
                await self._watch_child()
            except OSError as error:
                self._last_error = f"cannot start or watch {sys.executable}: {error}"
            except Exception as error:  # nobody would start the driver again
                LOG.exception("watching the pipeline's driver has failed, it is restarted")
                self._last_error = f"watching the driver: unexpected {error!r}"
            if self._is_renewed and self._child is not None and self._child.returncode is None:
                await self._end_child(self._settings.stop_timeout_s)
                continue
            await self._end_child(0)
            self._failures += 1
            self._has_failed = self._has_failed or self._dies_too_often()
            self._enter("backoff")
            await asyncio.sleep(pause_ms(self._settings, self._failures, self._has_failed) / 1000)
            self._restarts += 1

    def _dies_too_often(self) -> bool:
        now = time.monotonic()
        self._restart_times.append(now)
        while now - self._restart_times[0] > self._settings.restart_window_s:
            self._restart_times.popleft()
        return len(self._restart_times) > self._settings.restarts_max

    async def _start_child(self) -> None:
        self._rotate_log()
        self._places.status.unlink(missing_ok=True)
        self._is_to_begin_anew = self._is_renewed = False
        self._progress.begin(time.monotonic())
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
                env=os.environ | {VARIABLE: "0"},  # a message's hot path is not in it
            )
        assert self._child.stdin is not None
        # Settings go through the pipe, not the command line; it stays open until this process ends.
        self._child.stdin.write(msgspec.json.encode(self._settings) + b"\n")
        with suppress(ConnectionError):
            await self._child.stdin.drain()
        self._enter("starting")  # now with its process id

    async def _watch_child(self) -> None:
        """Returns when the child has ended, with the reason in `_last_error`."""
        child = self._child
        assert child is not None
        while True:
            try:
                # wait_for of Python 3.11 forgets that it was cancelled when the child ends at that moment.
                async with asyncio.timeout(_LOOK_S):
                    code = await child.wait()
            except TimeoutError:
                self._look_at(child.pid)
                if self._is_to_begin_anew:
                    self._last_error = self._progress.stalled
                    return
                if self._is_renewed:
                    return
                continue
            self._last_error = f"the driver ended with code {code}: {self._log_tail()}"[
                :_ERROR_CHARACTERS_MAX
            ]
            return

    def _look_at(self, pid: int) -> None:
        """Once a second while the driver lives."""
        now_s = time.monotonic()
        if self._state != "running" and self._driver_runs(pid):
            self._running_since_s = now_s
            # Its queries have begun: what is missing from now on was owed to somebody.
            self._settings = msgspec.structs.replace(self._settings, has_waited=False)
            self._enter("running")
        elif self._state == "running" and now_s - self._running_since_s > _HEALTHY_S:
            self._failures, self._has_failed = 0, False
        self._bound_log()

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
                async with asyncio.timeout(timeout_s):
                    await child.wait()
        for pid in session_members(child.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if child.stdin is not None:
            child.stdin.close()
        await child.wait()

    def _enter(self, state: SupervisorState) -> None:
        """What was `failed` is so until it runs."""
        self._state = "failed" if self._has_failed and state in ("starting", "backoff") else state
        found = self.statistics()
        report = SupervisorReport(
            state=found.state,
            pid=found.pid,
            restarts=found.restarts,
            last_error=found.last_error,
            stalled=found.stalled,
            is_apart=self._is_apart,
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


def pause_ms(settings: DriverSettings, failures: int, has_failed: bool) -> int:
    """Before the next try, after so many in a row that did not last."""
    longest = settings.backoff_max_ms * (FAILED_PAUSES if has_failed else 1)
    return min(settings.backoff_first_ms << min(failures - 1, 20), longest)


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
