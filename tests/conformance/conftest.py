"""One broker for the family, one with everything switched off, and clients whose names no other test uses.

With `--two-nodes` the family has the two nodes of a cluster, and each client of a test the next one in turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest
from tests.conformance.wire_client import WireClient
from tests.conformance.wires import Transport, open_wire
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority
from tests.support.forked_program import run_program

from embermq.mqtt.wire.version import ProtocolVersion

TROUBLE = re.compile(r"Traceback|exception|never retrieved|Unhandled", re.IGNORECASE)
ACCOUNT, PASSWORD = "known", b"a password\n"
DURABILITY = {"log.durability": "memory"}
STRICT = {
    **DURABILITY,
    "mqtt.max_qos": 1,
    "mqtt.unavailable": "retain,wildcards,shared,empty-client-ids",
    "mqtt.validate_payload_format": "true",
    "mqtt.response_information": "answers/%c",
    "mqtt.keep_alive_max_s": 60,
    "mqtt.topic_alias_maximum": 0,
    "mqtt.receive_maximum": 5,
    "mqtt.session_expiry_max_s": 1000,
    "mqtt.packet_bytes_max": 1024,
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a cluster leave out what is otherwise there, as docs/cluster.md says."""
    if config.getoption("--two-nodes"):
        left = [item for item in items if item.get_closest_marker("one_broker")]
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)


class Enter(Protocol):
    """Opens a connection for the client `<test's name><suffix>` and sends CONNECT."""

    def __call__(
        self, suffix: str = ..., version: ProtocolVersion = ..., **connect: object
    ) -> WireClient: ...


class FamilyBroker(BrokerProcess):
    """Serves every transport: `ports` by the port of plain TCP, which is the one that tests name."""

    def __init__(self, folder: Path, settings: Mapping[str, object] = DURABILITY) -> None:
        authority = Authority(folder / "certificates")
        self.tls = authority.trusting()
        tls, ws, wss = free_port(), free_port(), free_port()
        listeners = {"mqtts": tls, "ws": ws, "wss": wss}
        super().__init__(
            folder / "data",
            settings={
                **settings,
                "tls.cert": authority.server(),
                **{f"listeners.{name}": f"127.0.0.1:{port}" for name, port in listeners.items()},
            },
            # All that is refused comes from one address.
            constants={"embermq.app.authentication.FAILURES_FREE": 1_000_000},
        )
        self.ports: dict[Transport, int] = {"tcp": self.port, "tls": tls, "ws": ws, "wss": wss}


@pytest.fixture(scope="session")
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[FamilyBroker]]:
    """One broker, or two nodes."""
    folder = tmp_path_factory.mktemp("conformance")
    with ExitStack() as started:
        if request.config.getoption("--two-nodes"):
            yield [started.enter_context(each) for each in two_nodes(request, folder)]
        else:
            yield [started.enter_context(FamilyBroker(folder))]


def two_nodes(request: pytest.FixtureRequest, folder: Path) -> list[FamilyBroker]:
    """Of a cluster on servers, not started."""
    from tests.faults.cluster import node
    from tests.support.servers import on_servers

    kafka, redis, etcd = (
        request.getfixturevalue(f"running_{server}") for server in ("kafka", "redis", "etcd")
    )
    servers = on_servers(kafka, redis)
    made = [node(etcd, servers, folder, name) for name in ("zero", "one")]
    return [FamilyBroker(each.data_dir, each.settings) for each in made]


@pytest.fixture(scope="session")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Everything that can be switched off is, limits are small, and there is an account."""
    data_dir = tmp_path_factory.mktemp("strict")
    made = run_program("users", "add", ACCOUNT, "--data-dir", data_dir, stdin=PASSWORD.decode())
    made.check_returncode()
    with BrokerProcess(data_dir, settings=STRICT) as broker:
        yield broker


@pytest.fixture
def broker(family: list[FamilyBroker]) -> Iterator[FamilyBroker]:
    """The first one."""
    yield family[0]
    for each in family:
        assert each.is_running
        assert not TROUBLE.search(each.output()), each.output()


@pytest.fixture
def name() -> str:
    """Unlike any other test's, for topics and client ids. 3.1 allows 23 characters in an id."""
    return uuid4().hex[:12]


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> Transport:
    """TCP, unless the test is marked by `on_every_transport`."""
    found: Transport = getattr(request, "param", "tcp")
    return found


@pytest.fixture
def opened(transport: Transport, request: pytest.FixtureRequest) -> Iterator[Callable[..., WireClient]]:
    """Opens connections and closes them at the end; over another transport than TCP to the family only."""
    clients: list[WireClient] = []
    asks_family = transport != "tcp" or "broker" in request.fixturenames
    family: list[FamilyBroker] = request.getfixturevalue("family") if asks_family else []
    turns = cycle(family)

    def opening(port: int, version: ProtocolVersion = ProtocolVersion.V5, client_id: str = "") -> WireClient:
        tls = None
        if family and port == family[0].port:
            node = next(turns)
            port, tls = node.ports[transport], node.tls
        else:
            assert transport == "tcp"
        client = WireClient(open_wire(transport, port, tls), version, client_id)
        clients.append(client)
        return client

    yield opening
    for client in clients:
        client.close()


@pytest.fixture
def enter(broker: BrokerProcess, opened: Callable[..., WireClient], name: str) -> Enter:
    return _entering(broker.port, opened, name)


@pytest.fixture
def enter_strict(strict_broker: BrokerProcess, opened: Callable[..., WireClient], name: str) -> Enter:
    return _entering(strict_broker.port, opened, name)


def _entering(port: int, opened: Callable[..., WireClient], name: str) -> Enter:
    def entering(
        suffix: str = "c", version: ProtocolVersion = ProtocolVersion.V5, **connect: object
    ) -> WireClient:
        client = opened(port, version, name + suffix)
        answer = client.connect(**connect)  # type: ignore[arg-type]
        assert answer.reason_code == 0, answer
        return client

    return entering


@pytest.fixture
def port(broker: BrokerProcess) -> int:
    return broker.port
