"""One broker for the family, one with everything switched off, and clients whose names no other test uses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Protocol
from uuid import uuid4

import pytest
from tests.conformance.wire_client import WireClient
from tests.support.broker_process import BrokerProcess

from embermq.protocol.version import ProtocolVersion

TROUBLE = re.compile(r"Traceback|exception|never retrieved|Unhandled", re.IGNORECASE)
DURABILITY = {"log.durability": "memory"}
STRICT = {
    **DURABILITY,
    "mqtt.max_qos": 1,
    "mqtt.retain_available": "false",
    "mqtt.wildcard_subscription_available": "false",
    "mqtt.shared_subscription_available": "false",
    "mqtt.subscription_identifier_available": "false",
    "mqtt.allow_empty_client_id": "false",
    "mqtt.validate_payload_format": "true",
    "mqtt.response_information": "answers/%c",
    "mqtt.keep_alive_max_s": 60,
    "mqtt.topic_alias_maximum": 0,
    "mqtt.topic_alias_out_max": 0,
    "mqtt.receive_maximum": 5,
    "mqtt.session_expiry_max_s": 1000,
    "mqtt.packet_bytes_max": 1024,
}


class Enter(Protocol):
    """Opens a connection for the client `<test's name><suffix>` and sends CONNECT."""

    def __call__(
        self, suffix: str = ..., version: ProtocolVersion = ..., **connect: object
    ) -> WireClient: ...


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("conformance"), settings=DURABILITY) as broker:
        yield broker


@pytest.fixture(scope="session")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Everything that can be switched off is, and limits are small."""
    with BrokerProcess(tmp_path_factory.mktemp("strict"), settings=STRICT) as broker:
        yield broker


@pytest.fixture
def broker(shared_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    yield shared_broker
    assert shared_broker.is_running
    assert not TROUBLE.search(shared_broker.output()), shared_broker.output()


@pytest.fixture
def name() -> str:
    """Unlike any other test's, for topics and client ids. 3.1 allows 23 characters in an id."""
    return uuid4().hex[:12]


@pytest.fixture
def opened() -> Iterator[Callable[..., WireClient]]:
    """Opens sockets and closes them at the end."""
    clients: list[WireClient] = []

    def opening(port: int, version: ProtocolVersion = ProtocolVersion.V5, client_id: str = "") -> WireClient:
        client = WireClient(port, version, client_id)
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
