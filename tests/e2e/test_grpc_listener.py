"""gRPC of the installed program, with a client as anybody makes one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.support.broker_process import EMBERMQ, BrokerProcess, free_port
from tests.support.rpc_client import RpcClient
from tests.support.waiting import wait_until

from embermq.admin import queue_admin_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_SETTINGS = {name: value for name, value in os.environ.items() if not name.startswith("EMBERMQ_")}


def asks(port: int) -> None:
    """Makes a queue and finds it."""
    with RpcClient(port) as client:
        made = client("PutQueue", pb.PutQueueRequest(name="e2e/grpc", settings={"partitions": 3}))
        assert made.created and made.settings.partitions == 3
        assert [one.name for one in client("ListQueues", pb.ListQueuesRequest()).queues] == ["e2e/grpc"]


def by_default(folder: Path) -> str:
    """Where `embermq run` listens for gRPC when nobody says anything."""
    words = [str(EMBERMQ), "check-config", "--json"]
    told = subprocess.run(
        words, cwd=folder, env=WITHOUT_SETTINGS, capture_output=True, text=True, timeout=60, check=True
    )
    found: str = json.loads(told.stdout)["settings"]["listeners"]["grpc"]
    return found


def test_the_listener_answers_clients(tmp_path: Path) -> None:
    port = free_port()
    settings = {"listeners.grpc": f"127.0.0.1:{port}"}
    with BrokerProcess(tmp_path / "data", settings=settings, installed=True) as broker:
        assert f"grpc       127.0.0.1:{port}\n" in broker.output()
        asks(port)
        assert broker.stop() == 0
        wait_until(lambda: not broker.descendants(), 30, "no process is left")
        assert "Traceback" not in broker.output()


def test_it_is_there_by_default(tmp_path: Path) -> None:
    """Unless another program has its port, which the broker tells."""
    address = by_default(tmp_path)
    assert address == "127.0.0.1:9091"
    settings = {"listeners.grpc": address}
    with BrokerProcess(tmp_path / "data", settings=settings, installed=True) as broker:
        if f"gRPC is not served: another program has {address}" not in broker.output():
            assert f"grpc       {address}\n" in broker.output()
            asks(9091)


def test_make_run_takes_no_default_away() -> None:
    told = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "run"],
        cwd=ROOT,
        # Without what the make that runs the tests was told.
        env={name: value for name, value in WITHOUT_SETTINGS.items() if name not in ("ARGS", "MAKEFLAGS")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert told.stdout.splitlines()[-1].split() == ["exec", ".venv/bin/embermq", "run"]
