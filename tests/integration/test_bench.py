"""The load generator against Debian's Mosquitto, and against a broker that breaks its promises."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest
from benchmarks.brokers import RunningBroker, named_programs
from benchmarks.plan import MEMORY
from tests.integration.faulty_broker import Faults, FaultyBroker
from tests.support.broker_process import free_port

from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.catch_up import CatchUpReport, run_catch_up
from embermq_bench.errors import ConnectionLostError, RefusedError, SessionLostError
from embermq_bench.idle import run_idle
from embermq_bench.process_cost import WatchedProcess
from embermq_bench.report import LoadReport
from embermq_bench.run import Stage
from embermq_bench.scenario import run_load
from embermq_bench.settings import Limits, Load, Target
from embermq_bench.shape import Shape, fan_in, fan_out, pairs

MOSQUITTO = "/usr/sbin/mosquitto"
START_DEADLINE_S = 30.0
SHORT = Load(duration_s=0.3, warmup_s=0.1, drain_s=10.0)


class Mosquitto:
    """A running one."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def target(self, version: ProtocolVersion = ProtocolVersion.V5) -> Target:
        return Target(port=self.port, version=version)


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    port = free_port()
    configuration = tmp_path_factory.mktemp("mosquitto") / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_inflight_messages 0\n"
        "max_queued_messages 0\nlog_type error\n"
    )
    with subprocess.Popen([MOSQUITTO, "-c", str(configuration)]) as process:
        try:
            wait_for_port(port)
            yield Mosquitto(process.pid, port)
        finally:
            process.terminate()


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "shape", [pairs(5), fan_in(5), fan_in(5, subscribers=3), fan_out(5)], ids=lambda shape: shape.name
)
@pytest.mark.parametrize(
    ("version", "rate"),
    [(ProtocolVersion.V5, 0.0), (ProtocolVersion.V311, 500.0)],
    ids=["5-saturated", "3.1.1-paced"],
)
def test_every_message_is_accounted_for(
    mosquitto: Mosquitto, version: ProtocolVersion, qos: int, shape: Shape, rate: float
) -> None:
    load = Load(qos=qos, rate=rate, duration_s=0.3, warmup_s=0.1)
    begun_s = time.monotonic()
    report = asyncio.run(run_load(mosquitto.target(version), shape, load))
    elapsed_s = time.monotonic() - begun_s
    assert report.published > 50
    assert report.delivered == report.expected == report.published * shape.deliveries_per_message
    assert report.acknowledged == (report.published if qos else 0)
    assert report.lost == report.duplicated == report.reordered == report.corrupt == report.foreign == 0
    assert report.unacknowledged == report.refused == 0
    assert report.failures == ()
    assert report.delivery.samples > 0
    assert (report.acknowledgement.samples > 0) == (qos > 0)
    if rate:  # on a machine that stands still meanwhile the run is longer, and offers as many more
        assert rate * 0.4 * 0.5 < report.published <= rate * elapsed_s + 1


def test_members_of_a_group_get_each_message_once_together(mosquitto: Mosquitto) -> None:
    shape = fan_in(5, "bench-test-member", subscribers=3, group="g")
    report = asyncio.run(run_load(mosquitto.target(), shape, SHORT))
    assert report.published > 50
    assert report.delivered == report.expected == report.published
    assert report.lost == report.duplicated == report.corrupt == report.foreign == 0


def test_a_count_is_exact(mosquitto: Mosquitto) -> None:
    load = Load(count=1_001, warmup_s=0)
    report = asyncio.run(run_load(mosquitto.target(), pairs(3), load))
    paced = asyncio.run(run_load(mosquitto.target(), pairs(3), Load(count=100, rate=1000, warmup_s=0)))
    assert report.published == report.window_published == report.window_delivered == 1_001
    assert paced.published in range(100, 103)


def test_persistent_sessions_are_used_and_removed(mosquitto: Mosquitto) -> None:
    stages: list[Stage] = []
    load = Load(duration_s=0.2, warmup_s=0, persistent=True)
    shape = fan_in(2, "bench-test-subscriber")
    report = asyncio.run(run_load(mosquitto.target(), shape, load, on_stage=stages.append))
    assert report.persistent
    assert [stage.name for stage in stages][-1] == "clean up"
    again = asyncio.run(run_load(mosquitto.target(), shape, load))
    assert again.foreign == again.lost == 0


def test_costs_of_the_broker_are_measured(mosquitto: Mosquitto) -> None:
    watched = [WatchedProcess("mosquitto", mosquitto.pid)]
    report = asyncio.run(
        run_load(mosquitto.target(), pairs(10), Load(duration_s=1.0, warmup_s=0.1), watched=watched)
    )
    (cost,) = report.processes
    assert cost.cpu_s > 0.05
    assert cost.messages_per_cpu_s == report.messages_per_cpu_s
    assert cost.messages_per_cpu_s is not None
    assert cost.messages_per_cpu_s * cost.cpu_s == pytest.approx(
        report.window_published + report.window_delivered, rel=0.01
    )
    assert cost.pss_peak_bytes > 500_000
    assert report.generator_cpu_s > 0


def test_idle_connections(mosquitto: Mosquitto) -> None:
    watched = [WatchedProcess("mosquitto", mosquitto.pid)]
    report = asyncio.run(run_idle(mosquitto.target(), 200, hold_s=0.2, watched=watched))
    assert report.connections == 200
    assert report.processes[0].pss_with_bytes > 0


def test_connections_that_resume_leave_no_session_behind(mosquitto: Mosquitto) -> None:
    report = asyncio.run(run_idle(mosquitto.target(), 20, hold_s=0.1, resumed=True))
    assert report.connections == 20


@pytest.mark.parametrize("qos", [1, 2])
def test_what_absent_subscribers_missed_is_counted_at_their_return(mosquitto: Mosquitto, qos: int) -> None:
    watched = [WatchedProcess("mosquitto", mosquitto.pid)]
    load = Load(qos=qos, count=500, persistent=True)
    report = asyncio.run(run_catch_up(mosquitto.target(), pairs(5), load, pause_s=0.1, watched=watched))
    assert report.stored.messages == report.drained.messages >= 500
    assert (report.lost, report.duplicated, report.reordered, report.failures) == (0, 0, 0, ())


def test_a_broker_that_forgot_the_absent_ends_the_run() -> None:
    async def run() -> CatchUpReport:
        async with FaultyBroker(Faults(every=10, lose=True)) as broker:
            load = Load(count=100, duration_s=0.5, drain_s=0.5, persistent=True)
            return await run_catch_up(Target(port=broker.port), pairs(2), load, pause_s=0)

    with pytest.raises(SessionLostError):
        asyncio.run(run())


@pytest.mark.parametrize("transport", ["tls", "websocket"])
@pytest.mark.parametrize("payload_bytes", [64, 200, 70_000])
def test_a_load_goes_over_tls_and_websocket(transport: str, payload_bytes: int) -> None:
    with RunningBroker(MEMORY, named_programs({}), transport=transport) as broker:
        ca = broker.reach[-1] if "--ca" in broker.reach else None
        target = Target(port=broker.port, ca=ca, web_socket="--websocket" in broker.reach)
        load = Load(payload_bytes=payload_bytes, window=3, duration_s=0.3, warmup_s=0.1)
        report = asyncio.run(run_load(target, pairs(3), load))
    assert report.delivered >= report.acknowledged > 0
    assert report.lost == report.corrupt == 0


def faulty_run(faults: Faults, load: Load, shape: Shape | None = None) -> LoadReport:
    async def run() -> LoadReport:
        async with FaultyBroker(faults) as broker:
            return await run_load(Target(port=broker.port), shape or pairs(2), load)

    return asyncio.run(run())


IMPATIENT = Load(count=500, warmup_s=0, drain_s=0.5, duration_s=0.5)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("shape", [pairs(2), fan_in(3), fan_out(2)], ids=lambda shape: shape.name)
def test_lost_messages_are_found_exactly(qos: int, shape: Shape) -> None:
    load = msgspec.structs.replace(IMPATIENT, qos=qos)
    report = faulty_run(Faults(every=10, lose=True), load, shape)
    assert report.lost == report.published // 10 * shape.deliveries_per_message
    assert "lost" in report.failures[0]
    assert report.delivered == report.expected - report.lost


def test_doubles_are_found_and_break_a_promise_at_qos_2_alone() -> None:
    once = faulty_run(Faults(every=10, double=True), Load(qos=1, count=500, warmup_s=0))
    exactly = faulty_run(Faults(every=10, double=True), Load(qos=2, count=500, warmup_s=0))
    assert once.duplicated == once.published // 10
    assert exactly.duplicated == exactly.published // 10
    assert once.failures == ()
    assert "more than once" in exactly.failures[0]
    assert once.lost == exactly.lost == 0


def test_swapped_messages_are_found() -> None:
    report = faulty_run(Faults(every=10, swap=True), Load(count=495, warmup_s=0), pairs(1))
    assert report.reordered == report.published // 10
    assert report.lost == report.duplicated == 0


def test_a_broker_that_hangs_up_ends_the_run() -> None:
    with pytest.raises(ConnectionLostError, match="ended the connection"):
        faulty_run(Faults(every=10, hang_up=True), SHORT)


def test_a_broker_that_refuses_ends_the_run() -> None:
    with pytest.raises(RefusedError, match="0x87"):
        faulty_run(Faults(connect_code=0x87), SHORT)


def test_no_broker_ends_the_run() -> None:
    target = Target(port=free_port())
    with pytest.raises(ConnectionLostError, match="cannot be reached"):
        asyncio.run(run_load(target, pairs(1), SHORT, limits=Limits(connect_timeout_s=2.0)))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "embermq_bench.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_prints_json_for_machines_and_a_table_for_people(mosquitto: Mosquitto) -> None:
    place = ("--port", str(mosquitto.port), "--pid", f"mosquitto={mosquitto.pid}")
    short = ("--duration", "0.3", "--warmup", "0.1")
    for_machines = command("p2p", "--pairs", "3", "--persistent", "--json", *place, *short)
    assert for_machines.returncode == 0, for_machines.stderr
    assert json.loads(for_machines.stdout)["lost"] == 0
    for_people = command("fanout", "--subscribers", "2", "--version", "3.1.1", "--qos", "2", *place, *short)
    assert for_people.returncode == 0, for_people.stderr
    assert "p99" in for_people.stdout
    idle = command("idle", "--connections", "10", "--hold", "0.1", "--json", *place)
    assert json.loads(idle.stdout)["connections"] == 10


def test_the_command_ends_with_1_when_something_was_lost() -> None:
    async def run() -> tuple[int | None, str]:
        async with FaultyBroker(Faults(every=10, lose=True)) as broker:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "embermq_bench.cli", "fanin", "--publishers", "2", "--count", "200"),
                *(
                    "--warmup",
                    "0",
                    "--duration",
                    "0.5",
                    "--drain",
                    "0.5",
                    "--port",
                    str(broker.port),
                    "--json",
                ),
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await process.communicate()
            return process.returncode, output.decode()

    code, output = asyncio.run(run())
    assert code == 1
    assert json.loads(output)["lost"] > 0


def test_the_command_says_in_one_line_why_it_could_not_run() -> None:
    done = command("p2p", "--port", str(free_port()), "--pairs", "1")
    assert done.returncode == 2
    assert done.stderr.startswith("embermq: 127.0.0.1:")
    assert len(done.stderr.splitlines()) == 1
    assert command("p2p", "--pid", "nonsense").returncode == 2
    assert command("p2p", "--password-from-env", "NO_SUCH_VARIABLE_HERE").returncode == 2
