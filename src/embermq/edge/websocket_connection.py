"""One WebSocket connection: between the network and the MQTT connection that it carries."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from embermq.edge.client_door import ClientDoor
from embermq.edge.connection import DRAINED_BYTES_MAX, FULL_READ_BYTES, REST_BYTES_MAX, Connection
from embermq.edge.connection_limits import ConnectionSlot
from embermq.edge.listener_context import ListenerContext
from embermq.edge.settings import Address, WebSocketSettings
from embermq.edge.websocket import WebSocket


class WebSocketConnection:
    """Frames of one client to bytes for what `client` makes, its `Connection` or who finds its node: a protocol of
    asyncio to the network, and the transport of these bytes to the client, by its methods. The time to CONNECT includes
    the upgrade."""

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
        self._mqtt.connection_made(cast(asyncio.Transport, self))

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
        elif websocket.more or (len(data) >= FULL_READ_BYTES and network.can_write_eof()):
            if network.can_write_eof():
                network.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """More frames came at once than one turn takes, or as much as a read does."""
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

    # What the client asks of its transport

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """What comes is for this one from now on."""
        self._mqtt = cast(Connection, protocol)

    def pause_reading(self) -> None:
        """Do not read until `resume_reading`."""
        self._held = True
        if self._network is not None:
            self._network.pause_reading()

    def resume_reading(self) -> None:
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

    def writelines(self, parts: list[bytes]) -> None:
        if self._network is not None:
            self._network.writelines(self._websocket.frame_parts(parts))

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
                self.resume_reading()
        elif self._at_eof:
            network.close()
        elif self._websocket.is_over() and network.can_write_eof():
            network.write_eof()  # closing with bytes unread would take back what the client has not read
            network.resume_reading()
        elif self._websocket.is_over() or not self._websocket.upgraded:
            network.close()

    def abort(self) -> None:
        if self._network is not None:
            self._network.abort()

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._network is None or self._network.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._network is not None:
            self._network.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._network.get_write_buffer_size() if self._network is not None else 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._network.get_extra_info(name, default) if self._network is not None else default

    # What the network tells

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
