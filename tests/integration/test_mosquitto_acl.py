"""The same ACL file under Mosquitto and here: the same messages arrive."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.mqtt_client import MqttClient, run
from tests.support.users import PASSWORD, add_users
from tests.support.waiting import wait_until

from embermq.mqtt.wire.packets import Subscription
from embermq.mqtt.wire.version import ProtocolVersion

MOSQUITTO = "/usr/sbin/mosquitto"
OBSERVER = "user observer\ntopic readwrite #\n"
CLIENTS = (("", "c1"), ("alice", "c2"), ("bob", "c3"), ("alice", "c4+"), ("bob", "c#5"), ("", "c6"))
TOPICS = (
    *("a", "a/b", "a/b/c", "/a", "a//b", "b"),
    *("u/alice/x", "u/bob/x", "u//x", "u/alice", "u/x/x"),
    *("c/c1", "c/c2", "c/c6", "c/c4", "alice/x", "bob/x", "pre-alice/c2", "u/%u/x"),
)
FILTERS = (
    *("a", "a/#", "a/+", "+/b", "#", "/a", "+/+", "+/+/c", "/#", "a/+/b", "a/b/c"),
    *("u/%u/#", "u/%u/x", "c/%c", "+/%u/x", "%u/x", "pre-%u/%c", "u/alice/x", "u/+/x"),
)
Outcome = tuple[set[tuple[str, str]], dict[str, set[str]]]


def random_acl(seed: int) -> str:
    """Sections of users, patterns and topics in any order, more allowed than denied."""
    chance = random.Random(seed)
    lines = []
    for _ in range(chance.randint(4, 14)):
        kind = chance.choice(["topic", "topic", "topic", "pattern", "user"])
        if kind == "user":
            lines.append(f"user {chance.choice(['alice', 'bob'])}")
            continue
        access = chance.choice(["", "read ", "read ", "write ", "write ", "readwrite ", "deny "])
        lines.append(f"{kind} {access}{chance.choice(FILTERS)}")
    return "\n".join([*lines, OBSERVER])


async def a_client(port: int, user: str, client_id: str) -> MqttClient:
    client = MqttClient(client_id, version=ProtocolVersion.V5)
    answer = await client.connect(port, username=user or None, password=PASSWORD if user else None)
    assert answer.reason_code == 0
    return client


async def outcome(port: int) -> Outcome:
    """Who could publish what, as acknowledged and as it arrived; and who received what of a publisher who may all."""
    observer = await a_client(port, "observer", "observer")
    await observer.subscribe(Subscription("#", 1))
    acknowledged: set[tuple[str, str]] = set()
    clients = {client_id: await a_client(port, user, client_id) for user, client_id in CLIENTS}
    for client_id, client in clients.items():
        for topic in TOPICS:
            if await client.publish(topic, client_id.encode(), qos=1) < 0x80:
                acknowledged.add((client_id, topic))
    await observer.ping()
    assert {(message.payload.decode(), message.topic) for message in observer.messages} == acknowledged
    for client in clients.values():
        assert list(await client.subscribe(Subscription("#", 1))) == [1]
    for topic in TOPICS:
        await observer.publish(topic, b"observer", qos=1)
    received: dict[str, set[str]] = {}
    for client_id, client in clients.items():
        await client.ping()
        received[client_id] = {message.topic for message in client.messages}
    for client in (observer, *clients.values()):
        client.close()
    return acknowledged, received


@contextmanager
def mosquitto(folder: Path, acl: str) -> Iterator[int]:
    """A running one, on its port."""
    port = free_port()
    (folder / "acl").write_text(acl)
    (folder / "acl").chmod(0o644)
    (folder / "mosquitto.conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nlog_type error\n"
        f"acl_file {folder / 'acl'}\nuser root\n"
    )
    with subprocess.Popen([MOSQUITTO, "-c", str(folder / "mosquitto.conf")]) as process:
        try:
            wait_until(lambda: listens(port), what="Mosquitto")
            yield port
        finally:
            process.terminate()


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def one(port: int) -> Outcome:
    found: list[Outcome] = []

    async def scenario() -> None:
        found.append(await outcome(port))

    run(scenario())
    return found[0]


@pytest.fixture(scope="module")
def ember(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("acl")
    (folder / "acl").write_text(OBSERVER)
    broker = BrokerProcess(folder / "data", settings={"authorization.mosquitto_acl": folder / "acl"})
    add_users(broker.data_dir, "alice", "bob", "observer")
    with broker:
        yield broker
        assert "Traceback" not in broker.output()


def reread(broker: BrokerProcess, text: str) -> None:
    before = len(broker.output_from(0))
    Path(str(broker.settings["authorization.mosquitto_acl"])).write_text(text)
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: b"rules from" in broker.output_from(before), what="the rules are read again")


def check(broker: BrokerProcess, folder: Path, acl: str) -> Outcome:
    reread(broker, acl)
    here = one(broker.port)
    with mosquitto(folder, acl) as port:
        there = one(port)
    assert here == there, acl
    return here


def test_an_acl_as_people_write_it(ember: BrokerProcess, tmp_path: Path) -> None:
    acl = """\
# Anonymous clients
topic read a/#
topic deny a/b

user alice
topic write a/#
topic read u/#
topic deny u/bob/x

# Everybody
pattern readwrite u/%u/#
pattern read c/%c

user bob
topic b
topic deny a/b/c
topic read a/#
"""
    published, received = check(ember, tmp_path, acl + OBSERVER)
    assert ("c2", "a/b") in published
    assert received["c1"] == {"a", "a//b", "a/b/c", "c/c1"}


@pytest.mark.parametrize("seeds", [range(8), range(8, 16)], ids=["first", "second"])
def test_any_acl(ember: BrokerProcess, tmp_path: Path, seeds: Sequence[int]) -> None:
    some = 0
    for seed in seeds:
        published, received = check(ember, tmp_path, random_acl(seed))
        some += bool(published) and any(received.values())
    assert some >= len(seeds) // 3, "most of these files allow nothing: they show nothing"
