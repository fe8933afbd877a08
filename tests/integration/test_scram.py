"""SCRAM from the outside: the command line, another library's client, every transport, and clients that hang."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from scramp import ScramClient
from tests.conformance.wire_client import WireClient
from tests.conformance.wires import open_wire
from tests.support.broker_process import BrokerProcess
from tests.support.foreign_clients import SOURCES
from tests.support.forked_program import run_program
from tests.support.raw_client import RawClient, RawWebSocket, dial
from tests.support.waiting import wait_until

from embermq.app.accounts import accounts_of
from embermq.app.config import Settings
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Auth, Connack, Connect
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

V5 = ProtocolVersion.V5
METHODS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
METHOD = METHODS[0]
PASSWORD = "correct horse"
RUN_S = 60.0
HANGING = 1_000
BYTES_PER_HANGING = 40_000
SETTINGS = {"log.durability": "memory"}
CONSTANTS = {"embermq.app.authentication.FAILURES_FREE": 1_000_000}


def connect(client_id: str, data: str, method: str = METHOD) -> bytes:
    properties = Properties(authentication_method=method, authentication_data=data.encode())
    return encode(Connect(client_id, V5, properties=properties), V5)


def answer(data: str, method: str = METHOD) -> bytes:
    properties = Properties(authentication_method=method, authentication_data=data.encode())
    return encode(Auth(0x18, properties), V5)


def text_of(properties: Properties | None) -> str:
    assert properties is not None
    return (properties.authentication_data or b"").decode()


def users(directory: Path, *words: str, password: str = PASSWORD) -> str:
    """`embermq users`, with the password on its standard input."""
    done = run_program("users", *words, "--data-dir", directory, stdin=password + "\n", timeout_s=RUN_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With a WebSocket beside TCP, and users of all kinds."""
    directory = tmp_path_factory.mktemp("scram")
    with accounts_of(Settings(data_dir=str(directory)), create=True) as accounts:
        for name in ("ann", "grün,a=b"):
            accounts.add(name, PASSWORD.encode(), ClientType.DEVICE, scram=True)
    with BrokerProcess(
        directory, settings=SETTINGS | {"listeners.ws": "127.0.0.1:0"}, constants=CONSTANTS
    ) as running:
        yield running


def talks(client: RawClient, user: str = "ann", password: str = PASSWORD, method: str = METHOD) -> int:
    """The whole exchange; returns the reason code."""
    scram = ScramClient([method], user, password)
    client.send(connect(uuid4().hex, scram.get_client_first(), method))
    scram.set_server_first(text_of(client.expect(Auth).properties))
    client.send(answer(scram.get_client_final(), method))
    connack = client.expect(Connack)
    if connack.reason_code == 0:
        scram.set_server_final(text_of(connack.properties))
    return connack.reason_code


def enters(port: int, user: str = "ann", password: str = PASSWORD) -> int:
    with dialed(port) as client:
        return talks(client, user, password)


@contextmanager
def dialed(port: int) -> Iterator[RawClient]:
    client = RawClient(dial(port))
    try:
        yield client
    finally:
        client.close()


def test_an_account_made_on_the_command_line(tmp_path: Path) -> None:
    assert users(tmp_path, "add", "ann", "--scram") == "added ann (device, scram)\n"
    users(tmp_path, "add", "bob")
    shown = {row["name"]: row["scram"] for row in json.loads(users(tmp_path, "list", "--json"))}
    assert shown == {"ann": True, "bob": False}
    with BrokerProcess(tmp_path, settings=SETTINGS, constants=CONSTANTS) as broker:
        assert enters(broker.port) == 0
        assert enters(broker.port, "bob") == 0x87
        users(tmp_path, "password", "ann", password="another")
        assert enters(broker.port) == 0x87
        assert enters(broker.port, "ann", "another") == 0
        users(tmp_path, "disable", "ann")
        assert enters(broker.port, "ann", "another") == 0x87
        users(tmp_path, "enable", "ann")
        assert enters(broker.port, "ann", "another") == 0
        users(tmp_path, "remove", "ann")
        assert enters(broker.port, "ann", "another") == 0x87


def test_a_chain_without_scram_offers_no_method(tmp_path: Path) -> None:
    chain = '["password", "anonymous"]'
    with (
        BrokerProcess(
            tmp_path, settings=SETTINGS | {"authentication.chain": chain}, constants=CONSTANTS
        ) as broker,
        dialed(broker.port) as client,
    ):
        client.send(connect("c", "n,,n=ann,r=abc"))
        assert client.expect(Connack).reason_code == 0x8C


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("user", ["ann", "grün,a=b"])
def test_mqttjs_enters_by_scram(broker: BrokerProcess, method: str, user: str) -> None:
    for password, expected in (
        (PASSWORD, {"verified": True, "payload": "hello"}),
        ("wrong", {"refused": 0x87}),
    ):
        words = (f"mqtt://127.0.0.1:{broker.port}", method, user, password, uuid4().hex)
        done = subprocess.run(
            ["node", SOURCES / "scram.mjs", *words], capture_output=True, text=True, timeout=RUN_S
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == expected


def test_scram_over_websocket(broker: BrokerProcess) -> None:
    port = int(broker.output().partition("ws")[2].partition("127.0.0.1:")[2].split()[0].rstrip(","))
    client = RawWebSocket(dial(port))
    client.upgrade()
    assert talks(client) == 0
    client.close()


def memory_of(broker: BrokerProcess) -> int:
    """Resident bytes."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def test_many_exchanges_that_hang(tmp_path: Path) -> None:
    """They hold little, are thrown out in time, and keep nobody else out."""
    with accounts_of(Settings(data_dir=str(tmp_path)), create=True) as accounts:
        accounts.add("ann", PASSWORD.encode(), ClientType.DEVICE, scram=True)
    limits = {"clients.connections_max": 3_000, "clients.connections_per_address_max": 3_000}
    settings = SETTINGS | limits | {"clients.connect_rate_max": 0, "clients.connect_timeout_s": 10}
    with BrokerProcess(tmp_path, settings=settings, constants=CONSTANTS) as broker, ExitStack() as stack:
        assert enters(broker.port) == 0, "what is loaded once is loaded"
        before = memory_of(broker)
        for _ in range(2):
            hanging = [
                WireClient(open_wire("tcp", broker.port, None), V5, f"hanging-{number}")
                for number in range(HANGING)
            ]
            for client in hanging:
                stack.callback(client.close)
                client.send_bytes(connect(client.client_id, "n,,n=ann,r=abc"))
            for client in hanging[:: HANGING // 10]:
                client.expect(Auth)
            assert enters(broker.port) == 0
            grown = memory_of(broker) - before
            assert grown < HANGING * BYTES_PER_HANGING, f"{grown / HANGING} bytes an exchange"
            for client in hanging:
                while not isinstance(packet := client.next(), Connack):
                    assert isinstance(packet, Auth)
                assert packet.reason_code == 0x87
                assert client.end() is None


def test_time_does_not_tell_who_has_an_account(broker: BrokerProcess) -> None:
    """The medians of the two answers, for the user that there is and one that there is not, taken in turn."""
    took: dict[str, list[float]] = {"ann": [], "nob": []}
    for number in range(400):
        name = ("ann", "nob")[number % 2]
        with dialed(broker.port) as client:
            took[name].append(_time_of_refusal(client, name))
    medians = {name: statistics.median(times) for name, times in took.items()}
    assert 0.5 < medians["ann"] / medians["nob"] < 2, medians


def _time_of_refusal(client: RawClient, name: str) -> float:
    """What the broker takes for both answers, in seconds; what the client computes in between is left out."""
    scram = ScramClient([METHOD], name, "wrong")
    first = connect(uuid4().hex, scram.get_client_first())
    began_s = time.perf_counter()
    client.send(first)
    question = client.expect(Auth)
    asked_s = time.perf_counter() - began_s
    scram.set_server_first(text_of(question.properties))
    final = answer(scram.get_client_final())
    began_s = time.perf_counter()
    client.send(final)
    assert client.expect(Connack).reason_code == 0x87
    return asked_s + time.perf_counter() - began_s


def test_nothing_secret_is_said(broker: BrokerProcess) -> None:
    wait_until(lambda: "ready" in broker.output())
    assert PASSWORD not in broker.output()
    assert "Traceback" not in broker.output()
    assert "c=biws" not in broker.output()
