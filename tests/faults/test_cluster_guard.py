"""Two brokers on one Kafka and one Redis, in one cluster: one serves at a time, whatever happens to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from random import Random
from urllib.request import urlopen

import pytest
from tests.faults.fleet import V5, V311, Fleet
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.mqtt_client import ConnectionEnded, MqttClient, run
from tests.support.server_process import has_stopped
from tests.support.waiting import wait_for, wait_until

from embermq.cli.main import main
from embermq.mqtt.wire.packets import Puback, Publish

WAIT_S = 90.0
LEASE_S = 2
TIMES = 2
"""How often one node takes over from the other in a round."""
MESSAGES = 250
"""Of each publisher between two of them."""
TAKEN_OVER = ("has taken over from", "knows a broker with epoch", "has a newer writer")
"""By etcd, Redis or Kafka, whichever a node hears first."""


def two_nodes(etcd: EtcdServer, servers: dict[str, object], folder: Path) -> tuple[BrokerProcess, ...]:
    settings = servers | {"cluster.etcd": f"{etcd.url}/cars", "cluster.lease_ttl_s": LEASE_S}
    settings |= {"device.queue_limit": 60_000}
    return tuple(
        BrokerProcess(folder / name, settings=settings | {"cluster.node": name}) for name in ("one", "two")
    )


def stop_still(node: BrokerProcess) -> None:
    os.kill(node.pid, signal.SIGSTOP)
    wait_until(lambda: has_stopped(node.pid), WAIT_S, "it stands still")


def has_left(node: BrokerProcess) -> bool:
    """It has ended for the reason that it should give, and without a trace."""
    code, said = node.wait(WAIT_S), node.output()
    return code == 1 and any(reason in said for reason in TAKEN_OVER) and "Traceback" not in said


@pytest.mark.promise("cluster-2", "cluster-16")
def test_the_second_is_refused_and_serves_when_the_first_is_out_which_answers_nothing_more(
    etcd: EtcdServer, servers: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = two_nodes(etcd, servers, tmp_path)
    with first:
        assert main(["cluster", "status", "--data-dir", str(first.data_dir)]) == 0
        assert f"cluster cars, {etcd.url}/cars" in (told := capsys.readouterr().out)
        assert "\none " in told
        with urlopen(f"http://127.0.0.1:{first.http_port}/api/v1/cluster", timeout=WAIT_S) as answer:
            assert [each["about"]["node"] for each in json.load(answer)["nodes"]] == ["one"]
        second.launch()
        assert second.wait(WAIT_S) == 1
        assert "is served by node 'one'" in second.output()

        async def traffic() -> None:
            client = MqttClient("p")
            await client.connect(first.port)
            await client.publish("a", b"1", qos=1)
            stop_still(first)
            with second:
                client.send(Publish("a", b"z", 1, 7))
                answer = client.expect(Puback, 7)
                os.kill(first.pid, signal.SIGCONT)
                with pytest.raises(ConnectionEnded):
                    await answer
                assert has_left(first), first.output()
                assert second.stop() == 0
                assert not etcd.control("get", "/embermq/cars/", "--prefix")

        run(traffic())
    alone = BrokerProcess(tmp_path / "alone", settings=servers)
    alone.launch()
    assert alone.wait(WAIT_S) == 1
    assert "belongs to cluster 'cars'" in alone.output()


@pytest.mark.promise("cluster-17")
def test_while_etcd_is_away_the_node_serves_on(
    etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    node, _ = two_nodes(etcd, servers, tmp_path)
    keys = ("get", "/embermq/cars/nodes/", "--prefix", "--print-value-only")

    async def scenario() -> None:
        client = MqttClient("p")
        await client.connect(node.port)
        etcd.pause()
        await wait_for(lambda: "does not know of this node, which serves on" in node.output(), WAIT_S)
        await asyncio.sleep(
            2 * LEASE_S
        )  # no condition: the lease is over by etcd's clock, which tells nobody
        await client.publish("a", b"1", qos=1)
        etcd.resume()
        await wait_for(lambda: '"one"' in etcd.control(*keys), WAIT_S)
        etcd.control("del", "/embermq/cars/", "--prefix")
        await wait_for(lambda: '"one"' in etcd.control(*keys), WAIT_S)
        await client.publish("a", b"2", qos=2)

    with node:
        run(scenario())
        assert node.stop() == 0
    assert "Traceback" not in node.output()


@pytest.mark.promise("cluster-7", "cluster-16")
@pytest.mark.long_rounds
def test_nothing_is_lost_or_doubled_when_a_node_wakes_up_that_was_taken_over(
    seed: int, etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    random = Random(seed)
    nodes = serving, waiting = two_nodes(etcd, servers, tmp_path)

    async def scenario() -> None:
        nonlocal serving, waiting
        fleet = Fleet(serving.port, random, topics=5, window=50)
        fleet.subscriber("steady-3.1.1", V311)
        fleet.subscriber("steady-5", V5).slow_s = 0.2
        fleet.subscriber("restless-5", V5, restless_s=0.3)
        fleet.subscriber("narrow-5", V5, restless_s=0.8, receive_maximum=20, topic_filter="load/V5/#")
        await fleet.start_subscribers()
        fleet.start_publishers()
        for _ in range(TIMES):
            fleet.allow(MESSAGES)
            await asyncio.sleep(random.uniform(0.02, 0.6))
            await asyncio.to_thread(stop_still, serving)
            if random.random() < 0.5:
                await asyncio.to_thread(waiting.start)
            else:  # it may wake up while the other one takes over, or before that
                waiting.launch()
                await asyncio.sleep(random.uniform(0.0, 3.0 * LEASE_S))
            os.kill(serving.pid, signal.SIGCONT)
            await wait_for(lambda: not all(each.is_running for each in nodes), WAIT_S, "one has left")
            if waiting.is_running:
                assert has_left(serving), serving.output()
                serving, waiting = waiting, serving
                fleet.place.port = serving.port
            fleet.check()
        await wait_for(lambda: not any(each.allowance for each in fleet.publishers), WAIT_S, "all is taken")
        await fleet.drain()
        await fleet.stop()
        assert fleet.acknowledged() == len(fleet.publishers) * TIMES * MESSAGES
        fleet.judge()

    try:
        with serving:
            run(scenario())
            assert serving.stop() == 0
    finally:
        for node in nodes:
            node.close()
