"""Nodes of a cluster speak TLS with one another, and with nobody else."""

from __future__ import annotations

import asyncio
import math
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import cast

import pytest
from tests.support.broker_process import free_port
from tests.support.certificates import Authority as Clients
from tests.support.hand_driven import HandDrivenBroker
from tests.support.waiting import wait_for

from embermq.access.authentication.gate import Gate
from embermq.edge import listening_sockets, node_link
from embermq.edge.connection import Connection
from embermq.edge.listener_settings import Listener
from embermq.edge.mqtt_server import MqttServer
from embermq.edge.node_link import (
    NONCE_BYTES,
    OPERATION_BYTES_MAX,
    Homes,
    NonceReader,
    OperationAsked,
    Stops,
    ask_node,
    call_node,
)
from embermq.edge.node_tls import NodeTls
from embermq.edge.settings import Address, ClientSettings, OwnSettings
from embermq.edge.tick_loop import TickLoop
from embermq.edge.tls import TlsFileError
from embermq.tools.certificates import Authority

WAIT_S = 60
SECRET = b"s" * 32
HERE = "127.0.0.1"
CLIENTS = ClientSettings(connect_timeout_s=2 * WAIT_S)
"""With more time than a test has: no handshake ends by itself."""


class OneNode:
    """Of a cluster whose nodes speak TLS."""

    def __init__(self, tls: NodeTls) -> None:
        self.tls = tls

    def secret(self) -> bytes:
        return SECRET


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is over in between because the machine is busy."""
    monkeypatch.setattr(node_link, "CALL_S", WAIT_S)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "nodes")


def node_tls(authority: Authority, *hosts: str) -> NodeTls:
    certificate = authority.node(hosts or (HERE,), days=1, replace=True)
    return NodeTls(str(certificate), str(authority.certificate_file))


def echo(told: bytes, then: Callable[[bytes], None]) -> None:
    """What another node asks for is its answer, somewhat later."""
    asyncio.get_running_loop().call_soon(then, told)


@asynccontextmanager
async def listening(tls: NodeTls) -> AsyncIterator[tuple[MqttServer, Address]]:
    """A node's real door."""
    hand = HandDrivenBroker()
    homes = cast(Homes, OneNode(tls))
    server = MqttServer(hand.broker, cast(TickLoop, _Ticks()), cast(Gate, None), CLIENTS, homes)
    address = Address(HERE, free_port())
    await server.open_for_nodes(
        address, 0, take=lambda _: None, members_of=lambda _: [], do=echo, figures=dict
    )
    try:
        yield server, address
    finally:
        await server.stop()


class _Ticks:
    """Nobody comes so far that the broker has to do anything."""

    async def drain(self, _s: float) -> None:
        pass

    def wake(self) -> None:
        pass

    def look_at_clock(self) -> None:
        pass


async def nonce_from(address: Address, tls: NodeTls | None) -> bytes:
    """What a caller is greeted with. Raises OSError, EOFError."""
    async with asyncio.timeout(WAIT_S):
        far, nonce = await call_node(address, tls, NonceReader)
    far.abort()
    return nonce


def test_nodes_with_certificates_of_their_authority_reach_one_another(authority: Authority) -> None:
    async def scenario() -> None:
        async with listening(node_tls(authority)) as (_, address):
            assert len(await nonce_from(address, node_tls(authority, "192.0.2.9"))) == NONCE_BYTES

    asyncio.run(scenario())


class _HandedOn:
    """A client here that came to node `front`."""

    def __init__(self, front: str) -> None:
        self.front = front
        self.told: str | None = None

    def leave_node(self, elsewhere: str) -> None:
        self.told = elsewhere


def test_a_node_that_ends_has_its_clients_told_so_by_their_own_node(authority: Authority) -> None:
    async def scenario() -> None:
        tls = node_tls(authority)
        clients = [_HandedOn(front) for front in ("one:7946", "two:7946", "")]
        async with listening(tls) as (server, address):
            (door,) = server._doors
            door.connections |= {cast(Connection, client) for client in clients}
            for front in ("one:7946", ""):
                told = Stops(slot=0, node=front, elsewhere="three")
                assert await ask_node(address, tls, told, SECRET, WAIT_S) == b""
            door.connections.clear()
        assert [client.told for client in clients] == ["three", None, None]

    asyncio.run(scenario())


def test_what_an_operator_asks_of_another_node_is_answered(authority: Authority) -> None:
    async def scenario() -> None:
        tls = node_tls(authority)

        async def asked(told: bytes, announced: bytes, secret: bytes = SECRET, size: int = 0) -> bytes:
            digest = sha256(announced).hexdigest()
            about = OperationAsked(slot=0, size=size or len(announced), digest=digest)
            return await ask_node(address, tls, about, secret, WAIT_S, behind=told)

        async with listening(tls) as (_, address):
            for told in (b"", b"x", b"x" * OPERATION_BYTES_MAX):
                assert await asked(told, told) == told
            for ask in (
                asked(b"x", b"y"),
                asked(b"x", b"x", secret=b"t" * 32),
                asked(b"x", b"x", size=OPERATION_BYTES_MAX + 1),
            ):
                with pytest.raises((OSError, EOFError)):
                    await ask

    asyncio.run(scenario())


def without_certificate(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate_file))


def with_a_clients(authority: Authority) -> ssl.SSLContext:
    """Signed by another authority."""
    context = without_certificate(authority)
    context.load_cert_chain(Clients(authority.folder / "clients").client())
    return context


def with_a_servers(authority: Authority) -> ssl.SSLContext:
    """Of the right authority, and not for calls."""
    context = without_certificate(authority)
    context.load_cert_chain(*authority.server([HERE], days=1))
    return context


async def greeting(address: Address, context: ssl.SSLContext) -> bytes:
    """Raises OSError, EOFError."""
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    try:
        return await reader.readexactly(NONCE_BYTES)
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("context_of", [without_certificate, with_a_clients, with_a_servers])
def test_who_has_no_certificate_of_a_node_is_refused(
    authority: Authority, context_of: Callable[[Authority], ssl.SSLContext]
) -> None:
    async def scenario() -> None:
        async with listening(node_tls(authority)) as (_, address), asyncio.timeout(WAIT_S):
            with pytest.raises((OSError, EOFError)):
                await greeting(address, context_of(authority))

    asyncio.run(scenario())


def test_who_does_not_speak_tls_is_told_nothing(authority: Authority) -> None:
    async def scenario() -> None:
        async with listening(node_tls(authority)) as (_, address), asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(b"\0" * 100)
            told = await reader.read()
            assert len(told) < NONCE_BYTES, "an alert at most"
            writer.close()

    asyncio.run(scenario())


def test_a_node_without_tls_is_told_what_may_be_wrong(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_link, "CALL_S", 0.2)

    async def scenario() -> None:
        async with listening(node_tls(authority)) as (_, address):
            told = "too slow"
            while told == "too slow":  # it was not connected in so short a time
                with pytest.raises(TimeoutError) as error:
                    await call_node(address, None, NonceReader)
                told = str(error.value)
            assert "or speaks TLS, and this node does not" in told

    asyncio.run(scenario())


def test_a_node_calls_nobody_who_has_another_name_or_authority(authority: Authority, tmp_path: Path) -> None:
    async def scenario() -> None:
        own = node_tls(authority, "192.0.2.9")
        for wrong in (node_tls(authority, "192.0.2.8"), node_tls(Authority(tmp_path / "other"))):
            async with listening(wrong) as (_, address):
                with pytest.raises(ssl.SSLCertVerificationError):
                    await nonce_from(address, own)

    asyncio.run(scenario())


def test_certificates_are_read_again(authority: Authority, tmp_path: Path) -> None:
    """Both for who comes and for who is called; files that cannot be used change nothing."""

    async def scenario() -> None:
        other = Authority(tmp_path / "other")
        tls = node_tls(authority)
        async with listening(tls) as (server, address):
            other.node([HERE], days=1).replace(tls.settings.cert)
            shutil.copy(other.certificate_file, authority.certificate_file)
            assert [problem for _, problem in server.reload_certificates()] == [""]
            assert await nonce_from(address, tls)
            assert await nonce_from(address, node_tls(other))
            shutil.copy(other.certificate_file, tls.settings.cert)  # without a key
            ((listener, problem),) = server.reload_certificates()
            assert problem.startswith("cluster.cert: ") and "node" in str(listener)
            assert await nonce_from(address, tls)

    asyncio.run(scenario())


def test_a_key_of_another_certificate_is_told_of_the_file_that_has_it(authority: Authority) -> None:
    tls = node_tls(authority)
    file = Path(tls.settings.cert)
    certificate, begin, _ = file.read_text().partition("-----BEGIN PRIVATE KEY")
    node_tls(authority)
    key = file.read_text().partition(begin)[2]
    file.write_text(certificate + begin + key)
    with pytest.raises(TlsFileError, match="the key in it does not belong to the certificate") as told:
        tls.reload()
    assert told.value.name == "cert", "there is no cluster.key"


def test_clients_that_shake_hands_for_ever_do_not_hold_up_nodes(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening_sockets, "HANDSHAKES_MAX", 1)
    monkeypatch.setattr(listening_sockets, "HANDSHAKE_HELD_S", math.inf)

    async def scenario() -> None:
        async with listening(tls := node_tls(authority)) as (server, address):
            (clients,) = await server.open(
                Listener("mqtts", Address(HERE, 0), OwnSettings(), tls.settings, None, "tls", frozenset())
            )
            assert isinstance(clients, Address)
            _, writer = await asyncio.open_connection(clients.host, clients.port)
            await wait_for(lambda: server.statistics().tls_handshakes == 1, WAIT_S, "it has come")
            assert await nonce_from(address, tls)
            writer.close()

    asyncio.run(scenario())


def test_a_file_that_cannot_be_read_is_named(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(TlsFileError, match="cannot read") as told:
        NodeTls(str(authority.node([HERE], days=1)), str(tmp_path / "none.pem"))
    assert told.value.name == "ca"
