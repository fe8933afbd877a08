"""`bench queue` against a real broker: every message accounted for, in every mode, and refusals told."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.queue_worker import queue_broker

from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.errors import RefusedError
from embermq_bench.queue_report import QueueReport
from embermq_bench.queue_scenario import run_queue
from embermq_bench.settings import Ack, Load, QueueLoad, Target

FEW = 300
STRICT = '[[queues]]\nname = "ledger"\nordering = "strict"\n'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with queue_broker(tmp_path_factory.mktemp("bench"), STRICT) as running:
        yield running


def carried_out(
    broker: BrokerProcess,
    queue: QueueLoad,
    *,
    version: ProtocolVersion = ProtocolVersion.V5,
    qos: int = 1,
    rate: float = 0.0,
) -> QueueReport:
    load = Load(
        qos=qos, payload_bytes=1_024, rate=rate, count=FEW, warmup_s=0.0, duration_s=30.0, drain_s=30.0
    )
    return asyncio.run(run_queue(Target(port=broker.port, version=version), load, queue))


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("ack", list(Ack))
def test_every_message_is_delivered_and_settled(broker: BrokerProcess, qos: int, ack: Ack) -> None:
    queue = QueueLoad(publishers=3, consumers=2, keys=12, ack=ack, ack_batch=7)
    report = carried_out(broker, queue, qos=qos)
    assert report.published == report.acknowledged == report.distinct == report.settled >= FEW
    assert (report.lost, report.disordered, report.foreign, report.settles_refused) == (0, 0, 0, 0)
    assert report.failures == ()
    assert 0 < report.delivery.samples <= report.distinct
    assert bool(report.settling.samples) == (ack is Ack.BATCH)


def test_clients_of_mqtt_3_are_a_load_too(broker: BrokerProcess) -> None:
    queue = QueueLoad(publishers=2, consumers=2, ack=Ack.PUBACK)
    report = carried_out(broker, queue, version=ProtocolVersion.V311, rate=2_000)
    assert report.published == report.distinct >= FEW and report.lost == 0
    assert report.send_delay.samples >= FEW


def test_order_in_a_strict_queue_is_watched(broker: BrokerProcess) -> None:
    queue = QueueLoad(queue="ledger", consumers=2)
    report = carried_out(broker, queue)
    assert report.published == report.distinct >= FEW
    assert (report.lost, report.disordered) == (0, 0)


def test_what_the_broker_does_not_let_be_made_is_told(broker: BrokerProcess) -> None:
    with pytest.raises(RefusedError, match=r"\$admin/queue/bench/.*/config"):
        carried_out(broker, QueueLoad(partitions=3))


def test_the_queue_of_a_run_is_made_and_deleted_with_a_token(tmp_path: Path) -> None:
    words = ["bench", "queue", "--host", "127.0.0.1", "--count", "50", "--warmup", "0", "--json"]
    words += ["--publishers", "1", "--consumers", "2", "--partitions", "2"]

    def bench(broker: BrokerProcess, **env: str) -> subprocess.CompletedProcess[str]:
        places = ["--port", str(broker.port), "--http-port", str(broker.http_port)]
        named = ["--token-from-env", "API_TOKEN"] if env else []
        return run_program(*words, *places, *named, environment=env)

    with BrokerProcess(tmp_path / "data") as own:
        made = run_program("tokens", "create", "bench", "--scope", "admin", "--data-dir", own.data_dir)
        token = made.stdout.strip()
        without = bench(own)
        assert without.returncode == 2 and "status 401" in without.stderr
        wrong = bench(own, API_TOKEN=token + "x")
        assert wrong.returncode == 2 and "status 401" in wrong.stderr and token not in wrong.stderr
        done = bench(own, API_TOKEN=token)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (report["partitions"], report["lost"], report["left"]) == (2, 0, "")
        shown = {"Authorization": f"Bearer {token}"}
        listed = httpx.get(f"http://127.0.0.1:{own.http_port}/api/v1/queues", headers=shown, timeout=30)
        assert listed.json() == []


def test_a_queue_that_cannot_be_deleted_is_told(broker: BrokerProcess) -> None:
    report = carried_out(broker, QueueLoad())
    assert report.left == f"the queue bench/{report.run} stays: --http-port has it deleted"
    assert carried_out(broker, QueueLoad(queue="ledger")).left == ""


def test_the_command_prints_json_for_machines(broker: BrokerProcess) -> None:
    words = ["bench", "queue", "--port", str(broker.port), "--count", "50", "--warmup", "0", "--json"]
    words += ["--publishers", "2", "--consumers", "1", "--window", "10", "--pid", f"broker={broker.pid}"]
    done = run_program(*words)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["distinct"] == report["acknowledged"] >= 50 and report["lost"] == 0
    assert (report["payload_bytes"], report["window"]) == (1_024, 10)
    assert report["processes"][0]["pid"] == broker.pid
