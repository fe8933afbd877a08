"""The load generator with subscribers that go away and return, against EmberMQ and against brokers that forget."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.integration.faulty_broker import Faults, FaultyBroker
from tests.support.broker_process import BrokerProcess
from tests.support.measuring import judge

from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.errors import BenchError, LoadError, SessionLostError
from embermq_bench.process_cost import WatchedProcess
from embermq_bench.scenario import run_load, run_paced
from embermq_bench.settings import Load, Target
from embermq_bench.shape import pairs

ABSENT = Load(
    persistent=True, offline_share=0.3, away_s=0.3, rate=2_000, duration_s=1.5, warmup_s=0.3, drain_s=20.0
)
LONGER = (1, 6, 24)
"""Times that duration, until enough has come: a busy machine may do next to nothing for so long."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_absent_missed_is_counted_to_the_last(
    broker: BrokerProcess, qos: int, version: ProtocolVersion
) -> None:
    for times in LONGER:
        load = replace(ABSENT, qos=qos, duration_s=times * ABSENT.duration_s)
        report = asyncio.run(run_load(Target(port=broker.port, version=version), pairs(10), load))
        assert report.acknowledged == report.published == report.expected
        assert report.lost == report.corrupt == report.foreign == 0
        assert report.failures == ()
        assert report.delivered == report.expected + report.duplicated
        assert report.delivery.samples + report.returning.samples <= report.delivered
        # Three of ten are away at any time for 0.3 s each; a slow machine has fewer, and less published meanwhile.
        if report.returns >= 3 and min(report.delivery.samples, report.returning.samples) > 20:
            return
    pytest.fail(f"too little was measured: {report}")


@pytest.mark.in_perf
def test_what_the_absent_missed_counts_from_their_return(broker: BrokerProcess) -> None:
    load = Load(
        persistent=True, offline_share=0.5, away_s=1.0, rate=1_000, duration_s=2.0, warmup_s=0.0, drain_s=20.0
    )
    report = asyncio.run(run_load(Target(port=broker.port), pairs(4), load))
    assert report.returning.samples > 500
    # Half of what was missed is older than half a second, and that is not the broker's doing.
    assert report.returning.p50_ms is not None
    assert report.returning.p50_ms < 300
    # Who is here does not wait for who is not.
    assert report.delivery.p99_ms is not None
    assert report.delivery.p99_ms < 500


def test_a_saturated_run_with_absences_ends_by_itself(broker: BrokerProcess) -> None:
    load = Load(persistent=True, offline_share=0.5, away_s=0.2, count=20_000, warmup_s=0.0)
    report = asyncio.run(run_load(Target(port=broker.port), pairs(4), load))
    assert report.window_published == 20_000
    assert report.lost == 0
    assert report.returns >= 2


def test_a_paced_run_finds_its_rate_first(broker: BrokerProcess) -> None:
    load = Load(persistent=True, duration_s=0.5, warmup_s=0.2)
    report = asyncio.run(run_paced(Target(port=broker.port), pairs(4), load, 0.5))
    assert report.saturated_per_s is not None
    assert report.rate == report.saturated_per_s / 2
    judge(abs(report.published_per_s / report.rate - 1), 0.2, "how far from its rate a paced run publishes")
    assert report.delivery.p50_ms is not None


def test_a_paced_run_has_one_rate_only(broker: BrokerProcess) -> None:
    target = Target(port=broker.port)
    with pytest.raises(LoadError, match="exclude one another"):
        asyncio.run(run_paced(target, pairs(1), Load(rate=10), 0.5))
    with pytest.raises(LoadError, match=r"the saturated rate is 1\.5"):
        asyncio.run(run_paced(target, pairs(1), Load(), 1.5))


def test_a_queue_that_is_too_short_is_a_loss_and_no_rate_to_go_by(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with BrokerProcess(
        tmp_path_factory.mktemp("short") / "data", settings={"device.queue_limit": 10}
    ) as broker:
        target = Target(port=broker.port)
        report = asyncio.run(run_load(target, pairs(10), replace(ABSENT, drain_s=1.0)))
        assert report.lost > 100
        assert "lost" in report.failures[0]
        load = Load(persistent=True, offline_share=0.5, away_s=0.2, duration_s=0.5, warmup_s=0.2, drain_s=0.5)
        with pytest.raises(BenchError, match=r"no rate to go by: .* lost"):
            asyncio.run(run_paced(target, pairs(2), load, 0.5))


def test_a_broker_that_keeps_no_sessions_is_named() -> None:
    async def run() -> None:
        async with FaultyBroker(Faults()) as broker:
            await run_load(Target(port=broker.port), pairs(10), ABSENT)

    with pytest.raises(SessionLostError, match=r"bench-\w+-s0: came back, and the broker had no session"):
        asyncio.run(run())


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "embermq_bench.cli", "p2p", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--offline-share", "0.3"), "persistent"),
        (("--offline-share", "0.3", "--persistent", "--qos", "0"), "QoS 1 or 2"),
        (("--offline-share", "1", "--persistent"), "offline share is 1;"),
        (("--offline-share", "-0.1", "--persistent"), "offline share is -0.1;"),
        (("--offline-share", "0.3", "--persistent", "--away-s", "0"), "away is 0 s"),
        (("--offline-share", "0.3", "--persistent", "--away-s", "12"), "away is 12 s, warm-up and duration"),
        (("--offline-share", "0.3", "--persistent", "--pairs", "1"), "0.3 of 1 subscribers is 0"),
        (("--offline-share", "0.9", "--persistent", "--pairs", "2"), "0.9 of 2 subscribers is 2"),
        (("--paced", "0.5", "--rate", "100"), "exclude one another"),
        (("--paced", "1"), "the saturated rate is 1;"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(
    broker: BrokerProcess, options: tuple[str, ...], names: str
) -> None:
    done = command("--port", str(broker.port), *options)
    assert done.returncode == 2
    assert names in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_command_shows_both_latencies_and_the_cost_of_all_named_processes(broker: BrokerProcess) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            place = (
                "--port",
                str(broker.port),
                "--pid",
                f"broker={broker.pid},store={other.pid}",
                "--children",
            )
            load = ("--persistent", "--offline-share", "0.3", "--away-s", "0.2", "--pairs", "10")
            short = ("--duration", "1", "--warmup", "0.2", "--rate", "2000")
            for_machines = command("--json", *place, *load, *short)
            for_people = command(*place, *load, *short)
        finally:
            other.terminate()
    assert for_machines.returncode == for_people.returncode == 0, for_machines.stderr + for_people.stderr
    report = json.loads(for_machines.stdout)
    assert (report["offline_share"], report["away_s"], report["lost"]) == (0.3, 0.2, 0)
    assert report["returns"] > 5
    assert report["returning"]["samples"] > 0
    assert [process["name"] for process in report["processes"]] == ["broker", "store"]
    assert report["messages_per_cpu_s"] == report["processes"][0]["messages_per_cpu_s"]
    assert "30% away for 0.2 s" in for_people.stdout
    assert "after a return" in for_people.stdout


def test_a_process_that_is_gone_is_named() -> None:
    async def run() -> None:
        async with FaultyBroker(Faults()) as broker:
            watched = [WatchedProcess("redis", 4_194_305)]
            await run_load(
                Target(port=broker.port), pairs(1), Load(duration_s=0.2, warmup_s=0), watched=watched
            )

    with pytest.raises(BenchError, match="4194305"):
        asyncio.run(run())
