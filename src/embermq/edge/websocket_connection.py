"""One WebSocket connection: between the network and the MQTT connection that it carries."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from embermq.edge.client_door import ClientDoor
from embermq.edge.connection import DRAINED_BYTES_MAX, REST_BYTES_MAX, Connection
from embermq.edge.connection_limits import ConnectionSlot
from embermq.edge.listener_context import ListenerContext
from embermq.edge.settings import Address, WebSocketSettings
from embermq.edge.websocket import WebSocket


class WebSocketConnection(asyncio.Protocol):
    """Frames of one client to bytes for what `client` makes, its `Connection` or who finds its node. The time to
    CONNECT includes the upgrade."""

    def __init__(
        self,
        door: ListenerContext,
        settings: WebSocketSettings,
        client: Callable[[ConnectionSlot, Address | None], Connection | ClientDoor],
        place: ConnectionSlot,
        source: Address | None = None,
    ) -> None:
        self._door = door
        self._mqtt = client(place, source)
        self._websocket = WebSocket(settings)
        self._network: asyncio.Transport | None = None
        self._rest = b""
        """What was read and waits for its turn, behind frames that do as well."""
        self._held = False
        self._at_eof = False
        self._drained_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._network = cast(asyncio.Transport, transport)
        self._mqtt.connection_made(_Frames(self, self._network))

    def data_received(self, data: bytes) -> None:
        websocket, network = self._websocket, self._network
        if network is None:
            return
        if websocket.is_over():
            self._drained_bytes += len(data)
            if self._drained_bytes > DRAINED_BYTES_MAX:
                network.pause_reading()
            return
        if websocket.more:
            self._divide(data, network)
        else:
            self._take(data, network)

    def _divide(self, data: bytes, network: asyncio.Transport) -> None:
        """A turn is to come already."""
        self._rest += data
        if len(self._rest) > REST_BYTES_MAX:
            network.pause_reading()

    def _take(self, data: bytes, network: asyncio.Transport) -> None:
        websocket, mqtt = self._websocket, self._mqtt
        payload = websocket.receive(data, answers_pings=not mqtt.paused)
        if websocket.out:
            network.write(b"".join(websocket.out))
            websocket.out.clear()
        if payload:
            mqtt.data_received(payload)
        if websocket.is_over():
            self._end(network)
        elif websocket.more:
            if network.can_write_eof():
                network.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """More frames came at once than one turn takes."""
        network = self._network
        if self._held or self._at_eof or network is None or network.is_closing():
            return
        data, self._rest = self._rest, b""
        self._take(data, network)
        if not (self._websocket.more or self._is_held() or network.is_closing()):
            network.resume_reading()

    def _is_held(self) -> bool:
        return self._held

    def _end(self, network: asyncio.Transport) -> None:
        if self._websocket.fault:
            self._door.refused(self._mqtt.peer, self._websocket.fault)
        if self._mqtt.closing:
            network.close()
        else:
            self._mqtt.eof_received()

    def carry(self, client: Connection) -> None:
        """What comes is for this one from now on."""
        self._mqtt = client

    def hold(self) -> None:
        """Do not read until `read_on`."""
        self._held = True
        if self._network is not None:
            self._network.pause_reading()

    def read_on(self) -> None:
        self._held = False
        if self._network is None or self._network.is_closing():
            return
        if self._websocket.more:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._network.resume_reading()

    def write(self, data: bytes) -> None:
        if self._network is not None:
            self._network.write(self._websocket.frame(data))

    def close(self) -> None:
        """Say good-bye and wait for the answer; the MQTT connection sees to it that this ends."""
        network = self._network
        if network is None:
            return
        if self._websocket.is_open:
            network.write(self._websocket.close())
            if self._at_eof:
                network.close()
            else:
                self.read_on()
        elif self._at_eof:
            network.close()
        elif self._websocket.is_over() and network.can_write_eof():
            network.write_eof()  # closing with bytes unread would take back what the client has not read
            network.resume_reading()
        elif self._websocket.is_over() or not self._websocket.upgraded:
            network.close()

    def eof_received(self) -> bool:
        """The client sends nothing more: what it is to hear of what it sent is still written."""
        self._at_eof = True
        self._take_rest()
        if self._websocket.is_over() or (self._mqtt.closing and not self._websocket.is_open):
            return False  # both have said all
        self._mqtt.eof_received()
        return self._network is not None and self._network.can_write_eof()

    def _take_rest(self) -> None:
        """Nothing comes any more: what was read before counts."""
        while self._websocket.more:
            data, self._rest = self._rest, b""
            payload = self._websocket.receive(data, answers_pings=False)
            if payload:
                self._mqtt.data_received(payload)

    def pause_writing(self) -> None:
        self._mqtt.pause_writing()

    def resume_writing(self) -> None:
        self._mqtt.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._network = None
        self._take_rest()
        self._mqtt.connection_lost(exc)


class _Frames(asyncio.Transport):
    """The network as the MQTT connection sees it."""

    def __init__(self, owner: WebSocketConnection, network: asyncio.Transport) -> None:
        super().__init__()
        self._owner = owner
        self._network = network

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._owner.write(bytes(data))

    def close(self) -> None:
        self._owner.close()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._owner.carry(cast(Connection, protocol))

    def abort(self) -> None:
        self._network.abort()

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._network.is_closing()

    def pause_reading(self) -> None:
        self._owner.hold()

    def resume_reading(self) -> None:
        self._owner.read_on()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._network.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._network.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._network.get_extra_info(name, default)
