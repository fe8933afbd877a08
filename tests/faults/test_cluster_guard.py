"""Two brokers on one Kafka and one Redis, in one cluster: one serves at a time, whatever happens to it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random
from urllib.request import urlopen

import pytest
from tests.faults.cluster import WAIT_S, asked, has_left, stop_still
from tests.faults.fleet import V5, V311, Fleet
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.measuring import judge
from tests.support.metrics import metric
from tests.support.mqtt_client import ConnectionEnded, MqttClient, run
from tests.support.waiting import wait_for, wait_until, wait_while_it_goes_on

from embermq.cli.main import main
from embermq.mqtt.wire.packets import Puback, Publish

LEASE_S = 3
KILLS = int(os.environ.get("KILLS", "50"))
"""Of which the takeovers are measured."""
TIMES = 2
"""How often one node takes over from the other in a round."""
MESSAGES = 250
"""Of each publisher between two of them."""


def two_nodes(etcd: EtcdServer, servers: dict[str, object], folder: Path) -> tuple[BrokerProcess, ...]:
    settings = servers | {"cluster.etcd": f"{etcd.url}/cars", "cluster.lease_ttl_s": LEASE_S}
    settings |= {"device.queue_limit": 60_000}
    return tuple(
        BrokerProcess(folder / name, settings=settings | {"cluster.node": name}) for name in ("one", "two")
    )


WAITS = "stands by: node 'one' on "


def readiness(node: BrokerProcess, *, behind: str = "one") -> tuple[int, str]:
    """Of a node that stands by: its status, and how its reason begins."""
    status, text = asked(node, "/ready")
    reason = WAITS.replace("one", behind)
    return (status, reason) if reason in text else (0, text)


def stands_by(node: BrokerProcess) -> bool:
    return asked(node, "/ready")[0] == 503


def served(node: BrokerProcess) -> int:
    """How often it has got its place."""
    return node.output_from(0).count(b"\nready\n")


def serves(node: BrokerProcess, *, times: int = 1) -> bool:
    """Whether it has got its place so often."""
    return served(node) >= times


@pytest.mark.promise("cluster-2", "cluster-16")
def test_the_second_stands_by_and_serves_when_the_first_is_out_which_answers_nothing_more(
    etcd: EtcdServer, servers: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = nodes = two_nodes(etcd, servers, tmp_path)
    with ExitStack() as started:
        for node in nodes:
            started.callback(node.close)
        first.start()
        assert main(["cluster", "status", "--data-dir", str(first.data_dir)]) == 0
        assert f"cluster cars, {etcd.url}/cars" in (told := capsys.readouterr().out)
        assert "\none " in told
        with urlopen(f"http://127.0.0.1:{first.http_port}/api/v1/cluster", timeout=WAIT_S) as answer:
            assert [each["about"]["node"] for each in json.load(answer)["nodes"]] == ["one"]
        second.launch()
        wait_until(lambda: readiness(second) == (503, WAITS), WAIT_S, "the second stands by")
        os.kill(second.pid, signal.SIGHUP)  # there is nothing to read again
        assert asked(second, "/health")[0] == 200
        assert main(["cluster", "status", "--data-dir", str(second.data_dir)]) == 0
        told = capsys.readouterr().out
        assert re.search(r"^one .* 0 ", told, re.MULTILINE) and re.search(r"^two .* - ", told, re.MULTILINE)

        async def traffic() -> None:
            client = MqttClient("p")
            await client.connect(first.port)
            await client.publish("a", b"1", qos=1)
            stop_still(first)
            client.send(Publish("a", b"z", 1, 7))
            answer = client.expect(Puback, 7)
            wait_until(lambda: serves(second), WAIT_S, "the second serves")
            assert asked(second, "/ready")[0] == 200
            os.kill(first.pid, signal.SIGCONT)
            with pytest.raises(ConnectionEnded):
                await answer
            assert has_left(first), first.output()

        run(traffic())
        first.launch()
        wait_until(lambda: readiness(first, behind="two")[0] == 503, WAIT_S, "the first stands by")
        assert second.stop() == 0
        wait_until(lambda: serves(first, times=2), WAIT_S, "the first serves again")
        second.launch()
        wait_until(lambda: readiness(second) == (503, WAITS), WAIT_S, "the second stands by")
        assert second.stop() == 0
        assert first.stop() == 0
        assert not etcd.control("get", "/embermq/cars/", "--prefix")
        assert "Traceback" not in first.output() + second.output()
    alone = BrokerProcess(tmp_path / "alone", settings=servers)
    alone.launch()
    assert alone.wait(WAIT_S) == 1
    assert "belongs to cluster 'cars'" in alone.output()


@pytest.mark.promise("cluster-2")
def test_the_lease_of_a_process_that_died_ends_with_it_and_that_of_one_that_stands_still_does_not(
    etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """Whoever has the place of one that died would wait ten minutes for it."""
    settings = servers | {"cluster.etcd": f"{etcd.url}/cars", "cluster.lease_ttl_s": 600}
    names = ("get", "/embermq/cars/slots/", "--prefix", "--print-value-only")
    with BrokerProcess(tmp_path / "one", settings=settings | {"cluster.node": "one"}) as node:
        stop_still(node)
        assert etcd.control(*names).strip() == "one"
        node.kill()
        wait_until(lambda: not etcd.control(*names), WAIT_S, "the lease has ended")
        node.start()
        assert node.stop() == 0
        assert "Traceback" not in node.output()


@pytest.mark.promise("cluster-2")
def test_a_node_of_which_all_processes_end_at_once_is_out_when_its_lease_has_ended(
    etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """As when a container ends: nobody is left to say so."""
    node, other = two_nodes(etcd, servers, tmp_path)
    try:
        with node:
            other.launch()
            wait_until(lambda: stands_by(other), WAIT_S, "one stands by")
            (maker,) = children(node.pid)
            (guard,) = children(maker)
            os.kill(maker, signal.SIGSTOP)
            for process in (guard, maker):
                os.kill(process, signal.SIGKILL)
            node.kill()
            wait_until(lambda: serves(other), WAIT_S, "the other one serves")
            assert other.stop() == 0
    finally:
        other.close()


def children(of: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{of}/task/{of}/children").read_text().split()]


@pytest.mark.promise("cluster-17")
def test_while_etcd_is_away_the_node_serves_on(
    etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    node, other = two_nodes(etcd, servers, tmp_path)
    keys = ("get", "/embermq/cars/nodes/", "--prefix", "--print-value-only")

    async def scenario() -> None:
        client = MqttClient("p")
        await client.connect(node.port)
        other.launch()
        await wait_for(lambda: stands_by(other), WAIT_S)
        etcd.pause()
        await wait_for(lambda: "does not know of this node, which serves on" in node.output(), WAIT_S)
        await wait_for(lambda: "does not know of this node, which stands by" in other.output(), WAIT_S)
        await asyncio.sleep(
            2 * LEASE_S
        )  # no condition: the lease is over by etcd's clock, which tells nobody
        await client.publish("a", b"1", qos=1)
        etcd.resume()
        await wait_for(lambda: '"one"' in etcd.control(*keys), WAIT_S)
        await wait_for(lambda: '"two"' in etcd.control(*keys), WAIT_S)
        await asyncio.sleep(
            2 * LEASE_S
        )  # no condition: that long it may not take the place of the one that has registered again
        assert not serves(other)
        assert other.stop() == 0
        etcd.control("del", "/embermq/cars/", "--prefix")
        await wait_for(lambda: '"one"' in etcd.control(*keys), WAIT_S)
        await client.publish("a", b"2", qos=2)

    try:
        with node:
            run(scenario())
            assert node.stop() == 0
    finally:
        other.close()
    assert "Traceback" not in node.output() + other.output()


@pytest.mark.promise("cluster-7", "cluster-16")
@pytest.mark.long_rounds
def test_nothing_is_lost_or_doubled_when_a_node_wakes_up_that_was_taken_over(
    seed: int, etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    random = Random(seed)
    nodes = serving, waiting = two_nodes(etcd, servers, tmp_path)

    def one_has_left() -> bool:
        return not all(each.is_running for each in nodes)

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
            before = served(waiting)
            await asyncio.sleep(random.uniform(0.02, 0.6))
            await asyncio.to_thread(stop_still, serving)
            if random.random() < 0.5:
                await asyncio.to_thread(waiting.start)
                assert await asyncio.to_thread(metric, waiting, "session_store_former_ended") > 0
            else:  # it may wake up while the other one takes over, or before that
                waiting.launch()
                await asyncio.sleep(random.uniform(0.0, 3.0 * LEASE_S))
            os.kill(serving.pid, signal.SIGCONT)
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * LEASE_S):
                    await wait_for(one_has_left)
            if not one_has_left():  # it woke up in time, and serves on
                await asyncio.to_thread(stop_still, serving)
                await wait_for(partial(serves, waiting, times=before + 1), WAIT_S, "the other one serves")
                os.kill(serving.pid, signal.SIGCONT)
            await wait_for(one_has_left, WAIT_S, "one has left")
            if waiting.is_running:
                assert has_left(serving), serving.output()
                serving, waiting = waiting, serving
                fleet.place.port = serving.port
            fleet.check()
        await wait_while_it_goes_on(
            lambda: not any(each.allowance for each in fleet.publishers), fleet.acknowledged, "all is taken"
        )
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


@pytest.mark.in_perf
@pytest.mark.perf
def test_how_long_a_takeover_takes(etcd: EtcdServer, servers: dict[str, object], tmp_path: Path) -> None:
    serving, waiting = nodes = two_nodes(etcd, servers, tmp_path)
    took_s = list[float]()

    async def enters(port: int) -> None:
        client = MqttClient("p")
        await client.connect(port)
        client.close()

    with ExitStack() as started:
        for node in nodes:
            started.callback(node.close)
        serving.start()
        waiting.launch()
        for _ in range(KILLS):
            wait_until(partial(stands_by, waiting), WAIT_S, "one stands by")
            run(asyncio.sleep(LEASE_S))  # no condition: before, it may not take a place
            before = waiting.output_from(0).count(b"\nready\n")
            began_s = time.monotonic()
            serving.kill()
            wait_until(partial(serves, waiting, times=before + 1), WAIT_S, "it serves")
            run(enters(waiting.port))
            took_s.append(time.monotonic() - began_s)
            serving.launch()
            serving, waiting = waiting, serving
    half_seconds = Counter(int(2 * each) for each in took_s)
    for number in range(min(half_seconds), max(half_seconds) + 1):
        sys.stdout.write(f"{number / 2:4.1f} to {number / 2 + 0.5:4.1f} s  {'#' * half_seconds[number]}\n")
    judge(sorted(took_s)[KILLS // 2], LEASE_S + 3, f"s, the median takeover with a lease of {LEASE_S} s")
    judge(max(took_s), LEASE_S + 5, "s, the longest")
