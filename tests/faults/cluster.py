"""Nodes of a cluster with two slots, a fleet on all of them, and how one of them is lost under load."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tests.faults.fleet import V5, V311, Fleet
from tests.faults.traffic import Place
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.etcd_server import EtcdServer
from tests.support.mqtt_client import MqttClient
from tests.support.server_process import has_stopped
from tests.support.waiting import wait_for, wait_until

from embermq.cluster.slots import slot_of
from embermq.mqtt.wire.packets import Publish
from embermq.tools.certificates import Authority

WAIT_S = 90.0
LEASE_S = 2
SLOTS = 2
NO_QUEUES = {"queues.enabled": False}
TAKEN_OVER = ("has taken over from", "knows a broker with epoch", "has a newer writer")
"""By etcd, Redis or Kafka, whichever a node hears first."""


def node(
    etcd: EtcdServer,
    servers: dict[str, object],
    folder: Path,
    name: str,
    *,
    pipeline: bool = False,
    tls: Authority | None = None,
    queues: Mapping[str, object] = NO_QUEUES,
) -> BrokerProcess:
    """One that has not been started. With `tls` it speaks that with the others."""
    settings = servers | {"cluster.etcd": f"{etcd.url}/cars", "cluster.lease_ttl_s": LEASE_S}
    settings |= {"cluster.node": name, "cluster.slots": SLOTS, "cluster.listen": f"127.0.0.1:{free_port()}"}
    settings |= {"device.queue_limit": 60_000, **queues}
    if tls is not None:
        certificate = tls.node(["127.0.0.1"], days=1, replace=True).rename(folder / f"{name}.pem")
        settings |= {"cluster.cert": certificate, "cluster.ca": tls.certificate_file}
    return BrokerProcess(folder / name, pipeline=pipeline, settings=settings)


@contextmanager
def nodes(
    etcd: EtcdServer,
    servers: dict[str, object],
    folder: Path,
    *,
    spare: bool = False,
    pipeline: bool = False,
    tls: Authority | None = None,
    queues: Mapping[str, object] = NO_QUEUES,
) -> Iterator[list[BrokerProcess]]:
    """One for each slot, by slot, and one that stands by."""
    make = partial(node, etcd, servers, folder, pipeline=pipeline, tls=tls, queues=queues)
    found = [make(name) for name in ("zero", "one")]
    with ExitStack() as started:
        for each in found:
            started.callback(each.close)
            each.start()
        if spare:
            found.append(make("spare"))
            started.callback(found[-1].close)
            found[-1].launch()
        yield found


def id_of(slot: int, name: str) -> str:
    """A client id of this slot."""
    return next(each for number in range(1_000) if slot_of(each := f"{name}-{number}", SLOTS) == slot)


async def tell_without_a_log(clients: list[MqttClient]) -> None:
    """Each client publishes with QoS 0 until every one has heard of it: nodes find one another soon, not at once."""
    for number, client in enumerate(clients):
        topic = f"a/0/{number}"

        def heard(topic: str = topic, client: MqttClient = client) -> bool:
            client.send(Publish(topic, b"x"))
            return all(any(message.topic == topic for message in each.messages) for each in clients)

        await wait_for(heard, WAIT_S, topic)


class AnyPlace(Place):
    """One of the nodes, another one with each connection."""

    def __init__(self, ports: list[int], random: Random) -> None:
        self.ports = ports
        self.random = random

    @property
    def port(self) -> int:  # type: ignore[override]
        return self.random.choice(self.ports)


def cluster_fleet(found: Sequence[BrokerProcess], random: Random) -> Fleet:
    """Its publishers, and those whom it gets, connect to any of these."""
    fleet = Fleet(found[0].port, random, topics=5, window=50)
    fleet.place = AnyPlace([each.port for each in found], random)
    for publisher in fleet.publishers:
        publisher.place = fleet.place
    return fleet


async def started_fleet(found: Sequence[BrokerProcess], random: Random, *, restless: int = 1) -> Fleet:
    """With subscribers of both versions that stay, and so many that come and go; all are subscribed."""
    fleet = cluster_fleet(found, random)
    fleet.subscriber("steady-3.1.1", V311)
    fleet.subscriber("steady-5", V5)
    for number in range(restless):
        fleet.subscriber(f"restless-{number}", V5, restless_s=0.3)
    await fleet.start_subscribers()
    fleet.start_publishers()
    return fleet


async def all_is_taken(fleet: Fleet, deadline_s: float = WAIT_S) -> None:
    """What publishers may publish is published."""
    await wait_for(lambda: not any(each.allowance for each in fleet.publishers), deadline_s, "all is taken")


def starts(node: BrokerProcess) -> int:
    """How often it has begun to serve."""
    return node.output_from(0).count(b"\nready\n")


def serves_anew(node: BrokerProcess, before: int) -> bool:
    return starts(node) > before


def stands_by(node: BrokerProcess, before: int) -> bool:
    """Whether it says so in its output from there on."""
    return b"stands by" in node.output_from(before)


def asked(node: BrokerProcess, path: str) -> tuple[int, str]:
    """Status and text of an answer over HTTP; 0 while nothing listens."""
    try:
        with urlopen(f"http://127.0.0.1:{node.http_port}{path}", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
    except URLError:
        return 0, ""


def stop_still(node: BrokerProcess) -> None:
    os.kill(node.pid, signal.SIGSTOP)
    wait_until(lambda: has_stopped(node.pid), WAIT_S, "it stands still")


def has_left(node: BrokerProcess) -> bool:
    """It has ended for the reason that it should give, and without a trace."""
    code, said = node.wait(WAIT_S), node.output()
    return code == 1 and any(reason in said for reason in TAKEN_OVER) and "Traceback" not in said


async def lose_one(found: list[BrokerProcess], random: Random, deadline_s: float = WAIT_S) -> BrokerProcess:
    """Of two nodes and a spare one that serves is killed, or stands still until the spare has its slot and then leaves
    by itself. Returns it: `join_again` makes it the spare."""
    spare, victim = found.pop(), found.pop(random.randrange(SLOTS))
    before, stands_still = starts(spare), random.random() < 0.5
    if stands_still:
        await asyncio.to_thread(stop_still, victim)
    else:
        victim.kill()
    await wait_for(partial(serves_anew, spare, before), deadline_s, "the spare serves")
    if stands_still:
        os.kill(victim.pid, signal.SIGCONT)
        assert await asyncio.to_thread(has_left, victim), victim.output()
    found.append(spare)
    return victim


def join_again(found: list[BrokerProcess], lost: BrokerProcess) -> None:
    """It stands by from now on."""
    lost.launch()
    found.append(lost)
