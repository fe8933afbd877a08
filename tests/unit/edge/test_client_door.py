"""A client that another node serves: bytes go on in both directions, and every connection comes to its end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from embermq.access.authentication.gate import Visitor
from embermq.edge import client_door
from embermq.edge.client_door import BUFFER_BYTES, ClientDoor
from embermq.edge.connection_limits import ConnectionSlot
from embermq.edge.listener_context import ListenerContext
from embermq.edge.node_link import Homes
from embermq.edge.settings import Address, WebSocketSettings
from embermq.edge.websocket_connection import WebSocketConnection
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Connect, Packet
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.listener_terms import Terms

NODE = Address("192.0.2.7", 7_946)
CONNECT = encode(Connect("c", version=ProtocolVersion.V5), ProtocolVersion.V5)
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)


class Wire(asyncio.Transport):
    """A network that takes nothing more from `full` on; as asyncio's it tells that once."""

    def __init__(self, protocol: object = None) -> None:
        super().__init__()
        self.protocol: Any = protocol
        self.sent = b""
        self.reading = True
        self.ended = self.aborted = self.at_eof = False
        self.full = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data
        if len(data) > BUFFER_BYTES and not self.full:
            self.full = True
            self.protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.at_eof = True

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = self.aborted = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 4_711) if name == "peername" else default


class OfAnotherNode:
    """Every client; `node` has its slot."""

    def __init__(self, node: Address | None = NODE) -> None:
        self._node = node

    def home_of(self, _: Packet) -> tuple[int, Address | None]:
        return 1, self._node

    tls = None
    here = "192.0.2.6:7946"

    def secret(self) -> bytes:
        return b"s"


class Scene:
    """A client at this node, and the connection to its own one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, node: Address | None = NODE) -> None:
        self.far = Wire()
        self.client = Wire()
        state = SimpleNamespace(
            settings=SimpleNamespace(packet_bytes_max=1_000_000),
            counters=SimpleNamespace(connections_refused=0),
            common_terms=Terms(2, ("5.0",), True),
        )
        self.context = SimpleNamespace(
            broker=SimpleNamespace(state=state),
            listener=SimpleNamespace(address="here"),
            terms=None,
            connect_timeout_ms=60_000,
            doors=set(),
            refused=lambda *_: None,
            visitor=lambda *_: Visitor(False, None, ClientType.DEVICE, None, "192.0.2.1", ""),
            admission=SimpleNamespace(leave=lambda _: None),
        )
        self.door = ClientDoor(
            cast(Homes, OfAnotherNode(node)),
            cast(ListenerContext, self.context),
            lambda *_: pytest.fail("it is served here"),
            cast(ConnectionSlot, SimpleNamespace(refusal=None)),
        )

        async def call_node(_: Address, _tls: None, protocol: Any) -> tuple[asyncio.Transport, bytes]:
            self.far.protocol = protocol(asyncio.get_running_loop().create_future())
            return self.far, b"n" * 16

        monkeypatch.setattr(client_door, "call_node", call_node)

    def begins(self, protocol: asyncio.Protocol | None = None) -> None:
        self.client.protocol = protocol or self.door
        self.client.protocol.connection_made(self.client)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_client_is_not_read_while_its_node_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        scene = Scene(monkeypatch)
        scene.begins()
        follows = b"\x00" * (BUFFER_BYTES + 1)
        scene.door.data_received(CONNECT + follows)
        assert not scene.client.reading
        await turns()
        assert scene.far.full and scene.far.sent.endswith(CONNECT + follows)
        assert not scene.client.reading
        scene.far.protocol.resume_writing()
        assert scene.client.reading

    asyncio.run(scenario())


def test_a_client_whose_node_is_away_reads_why_before_the_connection_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_door, "CLOSE_MS", 0)

    async def scenario() -> None:
        scene = Scene(monkeypatch, node=None)
        scene.begins()
        scene.door.data_received(CONNECT + b"\xc0\x00")
        assert scene.client.sent[0] == 0x20 and scene.client.sent[3] == 0x88
        assert scene.client.at_eof and not scene.client.ended
        scene.door.data_received(CONNECT)
        await asyncio.sleep(0.001)
        await turns()
        assert scene.client.aborted and not scene.far.sent

    asyncio.run(scenario())


@pytest.mark.parametrize("answers", [True, False])
def test_a_websocket_ends_when_the_node_of_its_client_ends_the_connection(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_door, "CLOSE_MS", 60_000 if answers else 0)

    async def scenario() -> None:
        scene = Scene(monkeypatch)
        socket = WebSocketConnection(
            cast(ListenerContext, scene.context),
            WebSocketSettings(),
            lambda *_: scene.door,
            ConnectionSlot(),
        )
        scene.begins(cast(asyncio.Protocol, socket))
        mask = b"\x00" * 4
        socket.data_received(UPGRADE)
        socket.data_received(bytes((0x82, 0x80 | len(CONNECT))) + mask + CONNECT)
        await turns()
        assert scene.far.sent.endswith(CONNECT)
        scene.far.protocol.connection_lost(None)
        assert scene.client.sent[-4:-2] == b"\x88\x02"
        if answers:
            socket.data_received(b"\x88\x80" + mask)
            assert scene.client.ended and not scene.client.aborted
        else:
            await asyncio.sleep(0.001)
            await turns()
            assert scene.client.aborted

    asyncio.run(scenario())
