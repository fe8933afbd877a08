"""Deep queues: what they need of memory, and what a message of theirs costs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.deep_queue import DeepQueues
from tests.support.metrics import resident_mib
from tests.support.mqtt_client import run
from tests.support.queue_worker import worker
from tests.support.waiting import wait_for

DEPTHS = {"deep": 150_000, "shallow": 2_000}
SETTLED = 1_500
KEYS = 1_000
MORE_MIB_MAX = 20.0
"""300 MB for a million, less what the broker itself needs, is 33 for so many."""


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that starts with two queues, of which nobody has taken anything."""
    data_dir = tmp_path / "deep"
    fill(data_dir)
    with BrokerProcess(data_dir) as broker:
        yield broker


def fill(data_dir: Path) -> None:
    queues = DeepQueues(data_dir)
    for name, depth in DEPTHS.items():
        queues.add(name, depth, groups=[("workers", 0)], keys=KEYS)
    queues.close()


def processor_s(broker: BrokerProcess) -> float:
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.promise("queues-43")
def test_a_deep_queue_takes_little_memory(filled: BrokerProcess, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as empty:
        more_mib = resident_mib(filled) - resident_mib(empty)
    assert more_mib < MORE_MIB_MAX


@pytest.mark.promise("queues-43")
def test_a_message_of_a_deep_queue_costs_what_others_cost(filled: BrokerProcess) -> None:
    """Delivered and acknowledged; the bodies are those that were stored."""
    costs: dict[str, float] = {}

    async def scenario(name: str) -> None:
        taker = await worker(filled, f"workers-{name}")
        began_s = processor_s(filled)
        await taker.consumes(f"$queue/{name}", ack_mode="puback", prefetch="100")
        await wait_for(lambda: taker.inbox.qsize() >= SETTLED, what="so many messages")
        costs[name] = processor_s(filled) - began_s
        taker.close()
        for taken in [taker.inbox.get_nowait() for _ in range(SETTLED)]:
            assert int(taken.payload) + 1 == int(taken.properties["sequence"])
            assert taken.count == 1

    for name in ("shallow", "deep"):
        run(scenario(name))
    assert costs["deep"] < 3 * costs["shallow"]  # what grew with the depth would be 75 times as much
