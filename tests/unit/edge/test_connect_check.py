"""Enhanced authentication through the server, over TCP, with a method that a test answers for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from weakref import WeakSet

import pytest
from tests.support.hand_driven import HandDrivenBroker
from tests.support.mqtt_client import ConnectionEnded, MqttClient
from tests.support.waiting import wait_for

from embermq.access.authentication.gate import Visitor
from embermq.access.authentication.identity import Identity, MethodStep, Proof, Question, Refusal
from embermq.edge.connection import EARLY_BYTES_MAX
from embermq.edge.listener_settings import compose_listeners
from embermq.edge.mqtt_server import MqttServer
from embermq.edge.settings import (
    Address,
    ClientSettings,
    ListenerSettings,
    TlsSettings,
    WebSocketSettings,
)
from embermq.edge.tick_loop import TickLoop
from embermq.model.client_type import ClientType
from embermq.model.tick_writes import TickWrites
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Auth, Connack, Connect, Disconnect
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.tick_store import Logged
from embermq.sessions.client_events import ClientEvent, EventKind

METHOD = "ECHO"
CONTINUE, AGAIN = 0x18, 0x19
DEADLINE_S = 30.0


class Echo:
    """Sends back what it gets, until it gets `done`."""

    def __init__(self, gate: EchoGate, client_id: str) -> None:
        self._gate = gate
        self._client_id = client_id

    async def step(self, data: bytes | None) -> MethodStep:
        self._gate.steps.append((self._client_id, data))
        await self._gate.think()
        if data == b"done":
            return Proof(Identity(self._gate.user, ClientType.DEVICE, "given-id"), b"well done")
        return Refusal(ReasonCode.NOT_AUTHORIZED) if data == b"wrong" else Question(data)


class EchoGate:
    """Who shows no name may enter, with the method ECHO after some talk; a name is too much for it."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, bytes | None]] = []
        self.talks: WeakSet[Echo] = WeakSet()
        self.offered = True
        self.user = "alice"
        self.think: Callable[[], Awaitable[None]] = _at_once

    def admit(self, packet: Connect, visitor: Visitor) -> Identity | None:
        return None if packet.username is not None else Identity("", ClientType.DEVICE, "given-id")

    async def check(self, packet: Connect, visitor: Visitor) -> Identity | Refusal:
        raise RuntimeError("s3cret")

    def exchange(self, method: str, client_id: str, visitor: Visitor) -> Echo | None:
        assert visitor.loopback
        if method != METHOD or not self.offered:
            return None
        talk = Echo(self, client_id)
        self.talks.add(talk)
        return talk


async def _at_once() -> None:
    """No thinking."""


class Serving:
    """A server on a loopback port."""

    def __init__(self) -> None:
        self.gate = EchoGate()
        self.hand = HandDrivenBroker()
        self.port = 0

    async def serve(self, test: Callable[[Serving], Coroutine[None, None, None]], timeout_s: float) -> None:
        submitted = self.hand.store.submit

        def submit(writes: TickWrites, logged: Logged) -> None:
            submitted(writes, logged)
            asyncio.get_running_loop().call_soon(self.hand.store.commit)

        self.hand.store.submit = submit  # type: ignore[method-assign]
        ticks = TickLoop(self.hand.broker, self.hand.delivery, self.hand.store, linger_ms=0.0, poll_ms=1_000)
        server = MqttServer(
            self.hand.broker,
            ticks,
            self.gate,
            ClientSettings(connect_timeout_s=timeout_s),
        )
        listeners = ListenerSettings(mqtt="127.0.0.1:0", http=(), grpc=())
        (listener,) = compose_listeners(listeners, {}, TlsSettings(), WebSocketSettings())
        (address,) = await server.open(listener)
        assert isinstance(address, Address)
        self.port = address.port
        try:
            await test(self)
        finally:
            self.connections = server.connections
            await server.stop()
            ticks.stop()

    async def dials(self, client_id: str = "c") -> MqttClient:
        client = MqttClient(client_id)
        await client.open(self.port)
        return client


def run(test: Callable[[Serving], Coroutine[None, None, None]], *, timeout_s: float = 30.0) -> None:
    asyncio.run(asyncio.wait_for(Serving().serve(test, timeout_s), 60.0))


def connect(client_id: str = "c", data: bytes | None = b"hello", expiry_s: int | None = None) -> Connect:
    properties = Properties(
        authentication_method=METHOD, authentication_data=data, session_expiry_interval=expiry_s
    )
    return Connect(client_id, ProtocolVersion.V5, properties=properties)


def auth(data: bytes, code: int = CONTINUE) -> Auth:
    return Auth(code, Properties(authentication_method=METHOD, authentication_data=data))


async def asks(client: MqttClient, packet: Connect | Auth) -> Auth:
    answer = client.expect(Auth)
    client.send(packet)
    return await answer


async def enters(serving: Serving, client_id: str = "c", expiry_s: int | None = None) -> MqttClient:
    client = await serving.dials(client_id)
    assert await asks(client, connect(client_id, expiry_s=expiry_s)) == auth(b"hello")
    answer = client.expect(Connack)
    client.send(auth(b"done"))
    assert (await answer).reason_code == 0
    return client


@pytest.mark.parametrize("expiry_s", [None, 100])
def test_in_and_in_again(expiry_s: int | None) -> None:
    async def test(serving: Serving) -> None:
        client = await enters(serving, expiry_s=expiry_s)
        assert await asks(client, auth(b"still me", AGAIN)) == auth(b"still me")
        await client.ping()
        assert (await asks(client, auth(b"done"))).reason_code == 0
        assert serving.gate.steps == [
            ("c", b"hello"),
            ("c", b"done"),
            ("c", b"still me"),
            ("c", b"done"),
        ]
        assert client.is_open
        await wait_for(lambda: not serving.gate.talks, DEADLINE_S, "what is over is forgotten")

    run(test)


@pytest.mark.parametrize("again", [False, True])
def test_wrong_answers(again: bool) -> None:
    async def test(serving: Serving) -> None:
        if again:
            client = await enters(serving)
            client.send(auth(b"wrong", AGAIN))
            await wait_for(client.ended.done, DEADLINE_S)
            assert client.disconnect_received == Disconnect(0x87)
        else:
            client = await serving.dials()
            await asks(client, connect())
            answer = client.expect(Connack)
            client.send(auth(b"wrong"))
            assert await answer == Connack(False, 0x87)
            await wait_for(client.ended.done, DEADLINE_S)

    run(test)


def test_a_method_that_is_no_longer_offered_ends_the_connection() -> None:
    async def test(serving: Serving) -> None:
        client = await enters(serving)
        serving.gate.offered = False
        client.send(auth(b"done", AGAIN))
        await wait_for(client.ended.done, DEADLINE_S)
        assert client.disconnect_received == Disconnect(0x87)
        other = await serving.dials("other")
        answer = other.expect(Connack)
        other.send(connect("other"))
        assert (await answer).reason_code == 0x8C

    run(test)


def test_a_long_talk_is_not_held_back() -> None:
    """More bytes than are taken from a client that does not wait for its CONNACK."""

    async def test(serving: Serving) -> None:
        client = await serving.dials()
        await asks(client, connect())
        for number in range(4):
            data = bytes([number]) * (EARLY_BYTES_MAX // 2)
            assert await asks(client, auth(data)) == auth(data)
        answer = client.expect(Connack)
        client.send(auth(b"done"))
        assert (await answer).reason_code == 0

    run(test)


def test_what_comes_in_one_piece_with_connect() -> None:
    async def test(serving: Serving) -> None:
        client = await serving.dials()
        answer = client.expect(Connack)
        client.send(connect())
        client.send(auth(b"done"))
        assert (await answer).reason_code == 0x82
        assert not serving.hand.state.sessions

    run(test)


def test_a_client_that_leaves_while_the_method_thinks() -> None:
    async def test(serving: Serving) -> None:
        thought = asyncio.Event()
        serving.gate.think = _waiting_for(thought)
        client = await serving.dials()
        client.send(connect(data=b"done"))
        await wait_for(lambda: serving.gate.steps, DEADLINE_S)
        client.abort()
        await client.ended
        await wait_for(lambda: len(serving.hand.state.timers) == 0, DEADLINE_S, "the connection is over")
        thought.set()
        await MqttClient("other").connect(serving.port)
        assert list(serving.hand.state.sessions) == ["other"]

    run(test)


def test_a_guess_is_told_even_when_its_client_leaves_before_the_answer() -> None:
    async def test(serving: Serving) -> None:
        told: list[ClientEvent] = []
        serving.hand.state.tell = told.append
        thought = asyncio.Event()
        serving.gate.think = _waiting_for(thought)
        client = await serving.dials("guessing")
        client.send(connect(data=b"wrong"))
        await wait_for(lambda: serving.gate.steps, DEADLINE_S)
        client.abort()
        await client.ended
        await wait_for(lambda: len(serving.hand.state.timers) == 0, DEADLINE_S, "the connection is over")
        assert not told
        thought.set()
        await wait_for(lambda: told, DEADLINE_S, "the guess is told")
        assert (told[0].kind, told[0].reason) == (EventKind.LOGIN_FAILED, "not authorized")
        assert told[0].peer.startswith("127.0.0.1:")

    run(test)


@pytest.mark.parametrize("said", [b"", b"\xf0", encode(auth(b"done"), ProtocolVersion.V5)[:-1]], ids=len)
def test_the_time_to_connect_includes_the_exchange(said: bytes) -> None:
    """Also for a client that sends a byte now and then."""

    async def test(serving: Serving) -> None:
        began_s = asyncio.get_running_loop().time()
        client = await serving.dials()
        answer = client.expect(Connack)
        await asks(client, connect())
        client.send_bytes(said)
        assert (await answer).reason_code == 0x87
        assert asyncio.get_running_loop().time() - began_s > 0.29
        await wait_for(client.ended.done, DEADLINE_S)

    run(test, timeout_s=0.3)


def test_a_method_that_thinks_too_long() -> None:
    async def test(serving: Serving) -> None:
        serving.gate.think = _waiting_for(asyncio.Event())
        client = await serving.dials()
        answer = client.expect(Connack)
        client.send(connect())
        assert (await answer).reason_code == 0x89

    run(test, timeout_s=0.3)


def test_who_has_entered_stays_past_the_time_to_connect() -> None:
    async def test(serving: Serving) -> None:
        client = await enters(serving)
        hanging = await serving.dials("hanging")
        await asks(hanging, connect("hanging"))
        await wait_for(hanging.ended.done, DEADLINE_S)
        await client.ping()
        await asks(client, auth(b"never finished", AGAIN))
        with pytest.raises(ConnectionEnded) as ended:
            await client.expect(Auth)
        assert ended.value.disconnect is not None
        assert ended.value.disconnect.reason_code == 0x87

    run(test, timeout_s=1.5)


def _waiting_for(event: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        await event.wait()

    return wait


@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
def test_a_check_that_fails_by_itself_leaves_nobody_without_an_answer(
    version: ProtocolVersion, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(serving: Serving) -> None:
        client = MqttClient("c", version=version)
        answer = await client.connect(serving.port, username="ann", password=b"s3cret")
        assert answer.reason_code == (0x88 if version is ProtocolVersion.V5 else 3)
        await wait_for(client.ended.done, DEADLINE_S)

    run(test)
    assert "RuntimeError in " in caplog.text
    assert "s3cret" not in caplog.text


def test_a_step_that_fails_by_itself_ends_the_exchange() -> None:
    async def fail() -> None:
        raise RuntimeError

    async def test(serving: Serving) -> None:
        serving.gate.think = fail
        client = await serving.dials()
        answer = client.expect(Connack)
        client.send(connect())
        assert await answer == Connack(False, 0x88)

    run(test)
